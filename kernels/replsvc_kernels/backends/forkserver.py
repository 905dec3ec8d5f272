"""Kernels forked by a fork server, isolated by the operating system before any user code runs.

One server an environment, started when it is first needed and replaced when it dies; live sessions do
not notice. The server and its keeper end with us: they hold the other ends of what we hold.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.base import Backend, Isolation, Process
from replsvc_kernels.backends.guest_kernel import GuestEnds, guest_kernel
from replsvc_kernels.backends.process import check_python
from replsvc_kernels.backends.surroundings import kernel_environment
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Kernel, LaunchError, LaunchSpec
from replsvc_kernels.messages import Exit
from replsvc_kernels.sandbox import namespaces
from replsvc_kernels.sandbox.environment import read_only_paths
from replsvc_kernels.sandbox.session_root import RUN, TMP, WORK

SERVER = str(Path(__file__).parent.parent / "forkserver")
SERVER_START_S = 60.0
# How long a kernel's exit status may take to come from the server once the kernel has ended.
STATUS_S = 0.2
PROCESS_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
FIRST_UID = 1_879_048_192


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """An environment's fork server: its Python, what it imports ahead, and its variables.

    `sessions` is the directory with the sessions' directories (`NAME/work` and `NAME/run`), which
    all servers of a coordinator share; `staging` an empty directory of this server's own.
    """

    python: str
    sessions: str
    staging: str
    how: str
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class ForkedProcess(Process):
    """A kernel's process and its pid namespace, by descriptors; the server tells its exit status."""

    def __init__(self, number: int, pidfd: int, init: int, server: ForkServer) -> None:
        self._number, self._pidfd, self._init, self._server = number, pidfd, init, server
        self.pid = _host_pid(pidfd)
        self._exit: Exit | None = None
        self._reported, self._exited, self._swept = trio.Event(), trio.Event(), trio.Event()

    async def run(self) -> None:
        """Watch until nothing is left of it, then let the descriptors go."""
        try:
            await trio.lowlevel.wait_readable(self._pidfd)
            with trio.move_on_after(STATUS_S):
                await self._reported.wait()
            self._exit = self._exit or Exit()
            self._exited.set()
            self._end()
            await trio.lowlevel.wait_readable(self._init)
            self._swept.set()
        finally:
            self._end()
            self._exit = self._exit or Exit(signal=signal.SIGKILL)
            for event in (self._exited, self._swept):
                event.set()
            for fd in {self._pidfd, self._init}:
                os.close(fd)
            self._server.forget(self._number)

    def report(self, exit_: Exit) -> None:
        """From the server: how the kernel ended."""
        self._exit = exit_
        self._reported.set()

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init, signal.SIGKILL)

    async def signal(self, number: int) -> bool:
        """See `Process.signal`."""
        await trio.lowlevel.checkpoint()
        if self._exited.is_set():
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number, None, PROCESS_GROUP)
        except ProcessLookupError:
            return False
        except OSError:
            return self._server.signal(self._number, number)
        return True

    async def kill(self) -> None:
        """See `Process.kill`: a pid namespace ends with its init, and not before it is empty."""
        if not self._swept.is_set():
            self._end()
        await self._swept.wait()

    @property
    def exit(self) -> Exit | None:
        """See `Process.exit`."""
        return self._exit if self._exited.is_set() else None

    async def wait_exited(self) -> Exit:
        """See `Process.wait_exited`."""
        await self._exited.wait()
        assert self._exit is not None
        return self._exit


def _host_pid(pidfd: int) -> int:
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    return -1


class ForkServer:
    """One server over time: `fork` starts it if need be; `run` in a nursery keeps it."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._numbers = 0
        self._control: socket.socket | None = None
        self._forking: dict[int, trio.Event] = {}
        self._answers: dict[int, tuple[int, int] | str] = {}
        self._processes: dict[int, ForkedProcess] = {}
        self._wanted, self._changed = trio.Event(), trio.Event()
        self._failure: LaunchError | None = None

    # The server's process

    async def run(self) -> None:
        """Start the server when it is wanted, and again when it has died and is wanted."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._one_server()
            except LaunchError as error:
                self._failure = error
            finally:
                self._control = None
                for event in self._forking.values():
                    event.set()
                self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _one_server(self) -> None:
        spec = self._spec
        python = check_python(spec.python)
        with ExitStack() as stack:
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(control.close)
            control.setblocking(False)
            # The keeper ends when the last writer of this pipe does: we are the only one.
            held, hold = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, hold)
            config = await self._config(python)
            socket.send_fds(control, [json.dumps(config).encode()], [held])
            os.close(held)
            launch = LaunchSpec(workspace="/", python=python, env=spec.env)
            try:
                server = await trio.lowlevel.open_process(
                    [python, SERVER, str(theirs.fileno())],
                    env={**kernel_environment(launch, python), "HOME": WORK, "TMPDIR": TMP},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"the fork server can't be started: {error}") from error
            finally:
                theirs.close()
            try:
                await self._hear(control)
            finally:
                with trio.CancelScope(shield=True):
                    # Its end of our socket and pipe: server and keeper end by themselves.
                    stack.close()
                    server.kill()
                    await server.wait()

    async def _config(self, python: str) -> dict[str, Any]:
        spec = self._spec
        paths: Sequence[str] = ()
        if spec.how != "none":
            paths = await trio.to_thread.run_sync(read_only_paths, python)
        return {
            "how": spec.how,
            "preload": spec.preload,
            "sessions": spec.sessions,
            "staging": spec.staging,
            "paths": [*paths, str(Path(SERVER).parent)],
            "first_uid": FIRST_UID,
        }

    async def _hear(self, control: socket.socket) -> None:
        with trio.fail_after(SERVER_START_S):
            ready, _ = await _receive(control)
        if not ready.get("ready"):
            raise LaunchError(
                f"the fork server can't start: {ready.get('error', 'it ended without a word')}"
            )
        self._control = control
        self._change()
        while True:
            packet, fds = await _receive(control)
            if not packet:
                return
            if "forked" in packet:
                self._answer(packet["forked"], (fds[0], fds[-1]))
            elif "refused" in packet:
                self._answer(packet["refused"], str(packet.get("error")))
            elif (process := self._processes.get(packet.get("exited", -1))) is not None:
                process.report(Exit(packet.get("code"), packet.get("signal")))

    def _answer(self, number: int, answer: tuple[int, int] | str) -> None:
        event = self._forking.get(number)
        if event is None:
            if not isinstance(answer, str):
                for fd in set(answer):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                    os.close(fd)
            return
        self._answers[number] = answer
        event.set()

    # What others ask of it

    async def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> ForkedProcess:
        """A new kernel's process. Raises `LaunchError`; then nothing of it is left."""
        while self._control is None:
            self._failure = None
            changed = self._changed
            self._wanted.set()
            await changed.wait()
            if self._control is None and self._failure is not None:
                raise self._failure
        self._numbers += 1
        number = self._numbers
        event = self._forking[number] = trio.Event()
        try:
            body = json.dumps({"fork": number, **request}).encode()
            try:
                socket.send_fds(self._control, [body], list(fds))
            except OSError as error:
                raise LaunchError(f"the fork server does not answer: {error}") from error
            await event.wait()
        finally:
            del self._forking[number]
        answer = self._answers.pop(number, "it ended")
        if isinstance(answer, str):
            raise LaunchError(f"the fork server could not fork: {answer}")
        process = ForkedProcess(number, *answer, self)
        self._processes[number] = process
        return process

    def forget(self, number: int) -> None:
        """Nothing is left of that process."""
        self._processes.pop(number, None)

    def signal(self, number: int, signal_number: int) -> bool:
        """Have the server signal a kernel's group, where a descriptor can't."""
        if self._control is None or signal_number != signal.SIGINT:
            return False
        try:
            self._control.send(json.dumps({"interrupt": number}).encode())
        except OSError:
            return False
        return True


async def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A packet of the server's with its descriptors; an empty one when it has ended."""
    await trio.lowlevel.wait_readable(control)
    try:
        data, fds, _, _ = socket.recv_fds(control, 64 * 1024, 4, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return {}, []
    return (json.loads(data) if data else {}), list(fds)


class ForkServers:
    """All fork servers of a coordinator. Use as an async context manager."""

    def __init__(self, runtime: Path, sessions: Path, how: str) -> None:
        self._runtime, self._sessions, self._how = runtime, sessions, how
        self._servers: dict[tuple[object, ...], ForkServer] = {}
        self._users: set[int] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ForkServers]:
        """Servers live as long as the body."""
        async with background_nursery() as self._nursery:
            yield self

    def backend(
        self, python: str, preload: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> ForkServerBackend:
        """The backend of this environment; its server starts with the first kernel."""
        key = (python, preload, tuple(sorted((env or {}).items())))
        server = self._servers.get(key)
        if server is None:
            staging = self._runtime / f"root{len(self._servers)}"
            staging.mkdir(mode=0o755)
            spec = ServerSpec(
                python, str(self._sessions), str(staging), self._how, preload, env or {}
            )
            server = self._servers[key] = ForkServer(spec)
            self._nursery.start_soon(server.run)
        return ForkServerBackend(server, self)

    @property
    def how(self) -> str:
        """How sessions get their ids: see `sandbox.namespaces`."""
        return self._how

    @property
    def sessions(self) -> Path:
        """The directory with the sessions' directories."""
        return self._sessions

    def take_user(self) -> int:
        """An id for a session, of its own where a range is mapped."""
        if self._how != namespaces.ROOT and self._how != namespaces.SUBORDINATE:
            return namespaces.FIRST_SESSION_ID
        user = next(
            n
            for n in range(namespaces.FIRST_SESSION_ID, namespaces.FIRST_SESSION_ID + 60_000)
            if n not in self._users
        )
        self._users.add(user)
        return user

    def give_user_back(self, user: int) -> None:
        """No process of that user is left."""
        self._users.discard(user)


class ForkServerBackend(Backend):
    """See the module. `LaunchSpec.workspace` must be `SESSIONS/NAME/work`."""

    name = "forkserver"

    def __init__(self, server: ForkServer, servers: ForkServers) -> None:
        self._server, self._servers = server, servers

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        deadline = trio.current_time() + spec.startup_timeout_s
        name = Path(spec.workspace).parent.name
        run = self._servers.sessions / name / "run"
        with ExitStack() as stack:
            user = self._servers.take_user()
            stack.callback(self._servers.give_user_back, user)
            self._make(run, spec.workspace, user)
            stack.callback(_remove, run)
            ends = GuestEnds(f"{run}/k", f"{RUN}/k", spec.limits.max_streams)
            stack.callback(ends.pump.close)
            request = self._request(spec, name, user)
            async with background_nursery() as nursery:
                with ends.theirs, trio.move_on_at(deadline):
                    fds = [ends.guest_end.fileno(), *ends.stdio]
                    process = await self._server.fork(request, fds)
                    nursery.start_soon(process.run)
                isolation: Isolation = "full"
                async with guest_kernel(
                    ends, process, nursery, spec, isolation, deadline
                ) as kernel:
                    yield kernel

    def _make(self, run: Path, workspace: str, user: int) -> None:
        try:
            _remove(run)
            run.mkdir(mode=0o700)
            if self._servers.how == namespaces.ROOT:
                outside = namespaces.maps_for_root(FIRST_UID).outside(user)
                os.chown(run, *outside)
                _give(workspace, *outside)
        except OSError as error:
            raise LaunchError(f"the session's directories can't be made: {error}") from error

    def _request(self, spec: LaunchSpec, name: str, user: int) -> dict[str, Any]:
        python = spec.python
        env = kernel_environment(spec, python)
        return {
            "user": user,
            "work": f"{name}/work",
            "run": f"{name}/run",
            "tmp_bytes": 256 * 1024 * 1024,
            "shared_memory_bytes": 256 * 1024 * 1024,
            "rlimits": {},
            "env": {**env, "HOME": WORK, "TMPDIR": TMP, **spec.env},
        }


def _give(path: str, user: int, group: int) -> None:
    """The workspace and what was put there become the session's own."""
    os.chown(path, user, group)
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            os.chown(os.path.join(directory, name), user, group, follow_symlinks=False)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
