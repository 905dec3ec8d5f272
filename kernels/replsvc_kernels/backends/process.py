"""The guest as a plain process here, under a reaper that sweeps its tree. No isolation."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import trio

from replsvc_kernels._channels import Channels
from replsvc_kernels._pipes import Pair, Pump
from replsvc_kernels._wire import WireKernel
from replsvc_kernels.backends.base import Backend, Connection, Process
from replsvc_kernels.backends.reaped import ReaperProcess
from replsvc_kernels.backends.surroundings import (
    PORTS,
    kernel_environment,
    last_line,
    private_directory,
)
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Kernel,
    KernelDied,
    KernelInfo,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
)

GUEST = str(Path(__file__).parent.parent / "guest")
# What must not be importable in sessions: the environment may be the one that runs us.
HIDDEN = ("replsvc", "replsvc_kernels", "replsvc_extensions")


def _python(spec: LaunchSpec) -> str:
    python = spec.python or sys.executable
    if not Path(python).is_file() or not os.access(python, os.X_OK):
        raise LaunchError(f"there is no executable Python at {python}")
    return python


async def _hear_guest(guest: socket.socket) -> dict[str, Any]:
    """The guest's one packet: it is ready, or why not. Descriptors are not accepted."""
    await trio.lowlevel.wait_readable(guest)
    try:
        try:
            data = guest.recv(64 * 1024)
        except ConnectionResetError:
            # It ended without reading our packet; what it said before comes after the error.
            data = guest.recv(64 * 1024)
        hello = json.loads(data) if data else {}
    except (OSError, ValueError, RecursionError):
        hello = {}
    return hello if isinstance(hello, dict) else {}


async def _explain(hello: dict[str, Any], process: Process, orphan: Pair) -> NoReturn:
    """Say why a guest is not ready, in its own words or in the last that it printed."""
    if isinstance(error := hello.get("error"), str):
        raise LaunchError(error[:2_000])
    died = await process.wait_exited()
    printed = b"".join(data for pipe in orphan.pipes for data in pipe.drain())
    if died.signal is None and died.code:
        raise LaunchError(f"the kernel ended while it started ({died}): {last_line(printed)}")
    raise KernelDied(died, printed)


class _Ends:
    """What a launch needs on our side, and the ends that only the kernel keeps."""

    def __init__(self, connection: Connection, nonce: str, max_streams: int) -> None:
        with ExitStack() as undo, ExitStack() as undo_theirs:
            self.guest, self.guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo_theirs.callback(self.guest_end.close)
            self.guest.setblocking(False)
            self.pump = Pump(self.guest, max_streams)
            undo.callback(self.pump.close)
            self.orphan, self.stdio = self.pump.new_pair()
            for fd in self.stdio:
                undo_theirs.callback(os.close, fd)
            packet = {
                "key": connection.key.decode(),
                "transport": connection.transport,
                "ip": connection.ip,
                "ports": PORTS,
                "nonce": nonce,
                "hidden": HIDDEN,
                "pair": self.orphan.number,
            }
            socket.send_fds(self.guest, [json.dumps(packet).encode()], list(self.stdio))
            undo.pop_all()
            self.theirs = undo_theirs.pop_all()


class ProcessBackend(Backend):
    """See the module. `runtime_dir` holds the private socket directories; None is the system's."""

    name = "process"

    def __init__(self, runtime_dir: str | None = None) -> None:
        self._runtime_dir = runtime_dir

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        python = _python(spec)
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory(self._runtime_dir))
            key, nonce = secrets.token_hex(32), secrets.token_hex(8)
            connection = Connection("ipc", f"{directory}/k", PORTS, key.encode())
            try:
                ends = _Ends(connection, nonce, spec.limits.max_streams)
            except OSError as error:
                raise LaunchError(f"no pipes for the kernel can be made: {error}") from error
            stack.callback(ends.pump.close)
            process = ReaperProcess()
            async with background_nursery() as nursery:
                with ends.theirs:
                    keep = ends.guest_end.fileno()
                    await nursery.start(
                        process.run,
                        [python, GUEST, str(keep)],
                        kernel_environment(spec, python),
                        spec.workspace,
                        [keep],
                        ends.stdio,
                    )
                kernel: WireKernel | None = None
                grace_s = 0.0
                try:
                    with trio.move_on_after(spec.startup_timeout_s) as startup:
                        hello = await _hear_guest(ends.guest)
                        if hello.get("ready") is not True:
                            await _explain(hello, process, ends.orphan)
                        kernel = WireKernel(
                            KernelInfo("python", str(hello.get("python", ""))[:100], True),
                            process,
                            stack.enter_context(Channels(connection, spec.limits)),
                            spec.limits,
                            pump=ends.pump,
                            nonce=nonce.encode(),
                        )
                        kernel.orphan(ends.orphan)
                        await nursery.start(kernel.run)
                        await kernel.wait_ready()
                        kernel.prefetch()
                    if kernel is None or startup.cancelled_caught:
                        raise LaunchTimeout(
                            f"the kernel was not ready after {spec.startup_timeout_s:g} s"
                        )
                    grace_s = spec.close_grace_s
                    yield kernel
                finally:
                    with trio.CancelScope(shield=True):
                        if kernel is not None:
                            await kernel.shutdown(grace_s)
                        await process.kill()
