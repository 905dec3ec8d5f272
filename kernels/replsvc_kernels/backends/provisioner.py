"""Any installed kernelspec, through jupyter_client's provisioners. Without our guest.

Local kernels run under our reaper, over unix sockets in a private directory; other provisioners
launch as they like, and say where their kernel listens. Output comes as iopub streams: a kernel
that floods it faster than its consumer reads may drop messages by itself, which pipes can't.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, Literal

import trio

from replsvc_kernels.backends.asyncio_thread import AsyncioThread, shared_asyncio_thread
from replsvc_kernels.backends.base import Backend, Connection, Process
from replsvc_kernels.backends.foreign import LastPrinted, foreign_kernel, too_late
from replsvc_kernels.backends.reaped import ReaperProcess
from replsvc_kernels.backends.surroundings import kernel_environment, private_directory
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Kernel, KernelInfo, LaunchError, LaunchSpec
from replsvc_kernels.messages import Exit

LOCAL = "local-provisioner"
# An interrupt is answered within a second, whatever the kernel does.
MESSAGE_INTERRUPT_S = 0.8
# What a foreign provisioner gets to end its kernel, before we stop waiting for it.
FOREIGN_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class Kernelspec:
    """An installed kernelspec: the name to ask for it by, and what it says of itself."""

    name: str
    display_name: str
    language: str
    provisioner: str


def _read(name: str, directory: str) -> Kernelspec:
    """The kernelspec in `directory`; raises whatever reading and checking a bad one raises."""
    from jupyter_client.kernelspec import KernelSpec  # noqa: PLC0415 - 0.1 s, where used
    from jupyter_client.provisioning.factory import (  # noqa: PLC0415 - as above
        KernelProvisionerFactory,
    )

    spec = KernelSpec.from_resource_dir(directory)
    stanza = spec.metadata.get("kernel_provisioner", {})
    default = KernelProvisionerFactory.instance().default_provisioner_name
    provisioner = str(stanza.get("provisioner_name", default))
    return Kernelspec(name, spec.display_name, spec.language, provisioner)


def _directories() -> dict[str, str]:
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415 - 0.1 s, where used

    return dict(sorted(KernelSpecManager().find_kernel_specs().items()))


def list_kernelspecs() -> dict[str, Kernelspec]:
    """The installed kernelspecs by name, without those that can't be read.

    Reads files: call it from a worker thread.
    """
    found: dict[str, Kernelspec] = {}
    for name, directory in _directories().items():
        with contextlib.suppress(
            Exception
        ):  # somebody else's file: one that is broken hides itself
            found[name] = _read(name, directory)
    return found


def _find(name: str) -> Kernelspec:
    """The kernelspec called `name`; raises `LaunchError` that says what is wrong with it."""
    installed = _directories()
    directory = installed.get(name.lower())
    if directory is None:
        near = difflib.get_close_matches(name.lower(), installed, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        names = ", ".join(installed) or "none"
        raise LaunchError(f"there is no kernelspec {name!r}.{hint} Installed: {names}.")
    try:
        return _read(name.lower(), directory)
    except Exception as error:
        raise LaunchError(
            f"kernelspec {name!r} can't be launched: its kernel.json can't be read ({error})"
        ) from error


@dataclass(frozen=True, slots=True)
class _Plan:
    """A kernel that jupyter_client has prepared to launch."""

    spec: Kernelspec
    message_interrupt_s: float | None
    command: list[str]
    arguments: Mapping[str, Any]
    manager: Any

    @property
    def local(self) -> bool:
        return self.spec.provisioner == LOCAL

    @property
    def isolation(self) -> Literal["none", "external"]:
        return "none" if self.local else "external"

    def connection(self, said: Mapping[str, Any] | None = None) -> Connection:
        """Where the kernel will listen; `said` is what its provisioner returned."""
        info = {**self.manager.get_connection_info(), **(said or {})}
        key = info.get("key", b"")
        return Connection(
            info["transport"],
            info["ip"],
            {name: info[f"{name}_port"] for name in ("shell", "iopub", "stdin", "control", "hb")},
            key if isinstance(key, bytes) else str(key).encode(),
            info.get("signature_scheme", "hmac-sha256"),
        )


async def _prepare(name: str, directory: str, spec: LaunchSpec) -> _Plan:
    """Find the kernelspec and let its provisioner prepare. Runs in the asyncio thread."""
    from jupyter_client.kernelspec import NoSuchKernel  # noqa: PLC0415 - 0.1 s, where used
    from jupyter_client.manager import AsyncKernelManager  # noqa: PLC0415 - as above

    wanted = _find(name)
    place = {"transport": "ipc", "ip": f"{directory}/k"} if wanted.provisioner == LOCAL else {}
    environment = {
        "IPYTHONDIR": f"{directory}/ipython",  # else it is made in HOME, the session's workspace
        **kernel_environment(spec, sys.executable, directory),
    }
    try:
        manager = AsyncKernelManager(
            kernel_name=wanted.name, connection_file=f"{directory}/connection.json", **place
        )
        command, arguments = await manager.pre_start_kernel(env=environment, cwd=spec.workspace)
        by_message = getattr(manager.kernel_spec, "interrupt_mode", "signal") == "message"
        deadline_s = MESSAGE_INTERRUPT_S if by_message else None
    except NoSuchKernel:  # it is there, but jupyter_client refuses it for its provisioner
        raise LaunchError(
            f"kernelspec {name!r} can't be launched: its provisioner {wanted.provisioner!r} "
            "is not installed"
        ) from None
    except Exception as error:  # provisioners are plugins: they raise what they like
        raise LaunchError(f"kernelspec {name!r} can't be launched: {error}") from error
    return _Plan(wanted, deadline_s, command, arguments, manager)


class ProvisionedProcess(Process):
    """A kernel that a foreign provisioner launches and ends; `run` does both."""

    def __init__(self, thread: AsyncioThread, plan: _Plan) -> None:
        self._thread, self._plan = thread, plan
        self._provisioner: Any = plan.manager.provisioner
        self._exit: Exit | None = None
        self._exited = trio.Event()
        self.pid: int | None = None

    async def run(
        self, *, task_status: trio.TaskStatus[Connection] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Launch, report where the kernel listens, and wait for its end; cancelling kills it.

        Raises `LaunchError`.
        """

        async def launch() -> Mapping[str, Any]:
            said = await self._provisioner.launch_kernel(self._plan.command, **self._plan.arguments)
            await self._provisioner.post_launch(**self._plan.arguments)
            return dict(said)

        try:
            try:
                said = await self._thread.call(launch)
                connection = self._plan.connection(said)
            except Exception as error:
                name = self._plan.spec.name
                raise LaunchError(f"kernelspec {name!r} can't be launched: {error}") from error
            pid = getattr(self._provisioner, "pid", None)
            self.pid = pid if isinstance(pid, int) else None
            task_status.started(connection)
            code = await self._thread.call(self._provisioner.wait)
            # As subprocess says it: a signal is a negative code.
            self._exit = Exit(signal=-code) if code is not None and code < 0 else Exit(code)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(FOREIGN_KILL_S):
                await self._thread.call(self._end)
            if self._exit is None:
                self._exit = Exit()
            self._exited.set()

    async def _end(self) -> None:
        # In the asyncio thread. A launch that was cancelled half-way may have a process, too.
        with contextlib.suppress(Exception):
            if self._provisioner.has_process:
                await self._provisioner.kill()
                await self._provisioner.wait()
        with contextlib.suppress(Exception):
            await self._provisioner.cleanup()

    async def signal(self, number: int) -> bool:
        """See `Process.signal`."""
        return await self._ask(lambda: self._provisioner.send_signal(number))

    async def kill(self) -> None:
        """See `Process.kill`."""
        await self._ask(self._provisioner.kill)
        with trio.move_on_after(FOREIGN_KILL_S):
            await self._exited.wait()

    async def _ask(self, function: Callable[[], Any]) -> bool:
        if self._exit is not None:
            return False
        try:
            await self._thread.call(function)
        except Exception:  # noqa: BLE001 - provisioners are plugins, they raise what they like
            return False
        return True

    @property
    def exit(self) -> Exit | None:
        """See `Process.exit`."""
        return self._exit

    async def wait_exited(self) -> Exit:
        """See `Process.wait_exited`."""
        await self._exited.wait()
        assert self._exit is not None
        return self._exit


class ProvisionerBackend(Backend):
    """Kernels of the kernelspec `kernel_name`.

    `runtime_dir` holds the private directories; None is the system's.
    """

    name = "provisioner"

    def __init__(self, kernel_name: str, runtime_dir: str | None = None) -> None:
        self._kernel_name, self._runtime_dir = kernel_name, runtime_dir

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`. A kernelspec that is not installed is a `LaunchError`."""
        deadline = trio.current_time() + spec.startup_timeout_s
        async with shared_asyncio_thread() as thread:
            with ExitStack() as stack:
                directory = stack.enter_context(private_directory(self._runtime_dir))
                printed = stack.enter_context(closing(LastPrinted()))
                async with background_nursery() as nursery:
                    with trio.move_on_at(deadline) as startup:
                        plan = await thread.call(
                            lambda: _prepare(self._kernel_name, directory, spec)
                        )
                        process, at = await self._launch(nursery, thread, plan, spec, printed)
                    if startup.cancelled_caught:
                        raise too_late(spec)
                    nursery.start_soon(printed.run)
                    info = KernelInfo(plan.spec.language, "", False, plan.isolation)
                    async with foreign_kernel(
                        info, process, at, printed, nursery, spec, deadline,
                        message_interrupt_s=plan.message_interrupt_s,
                    ) as kernel:  # fmt: skip
                        yield kernel

    async def _launch(
        self,
        nursery: trio.Nursery,
        thread: AsyncioThread,
        plan: _Plan,
        spec: LaunchSpec,
        printed: LastPrinted,
    ) -> tuple[Process, Connection]:
        if not plan.local:
            printed.close_write_end()
            foreign = ProvisionedProcess(thread, plan)
            return foreign, await nursery.start(foreign.run)
        process = ReaperProcess()
        await nursery.start(
            process.run,
            plan.command,
            plan.arguments["env"],
            spec.workspace,
            [],
            (printed.write_end, printed.write_end),
        )
        printed.close_write_end()
        return process, plan.connection()
