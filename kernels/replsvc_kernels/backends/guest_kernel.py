"""From a launched guest to a ready kernel: the same for a plain process and for a forked one."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NoReturn

import trio

from replsvc_kernels._channels import Channels
from replsvc_kernels._merge import expect
from replsvc_kernels._pipes import Pair, Pump
from replsvc_kernels._wire import WireKernel
from replsvc_kernels.backends.base import Connection, Isolation, Process
from replsvc_kernels.backends.surroundings import PORTS, last_line
from replsvc_kernels.kernel import (
    GuestUntested,
    KernelDied,
    KernelInfo,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
)
from replsvc_kernels.messages import Limits

# What must not be importable in sessions: the environment may be the one that runs us.
HIDDEN = ("replsvc", "replsvc_kernels", "replsvc_extensions")


class GuestEnds:
    """What a launch needs on our side, and in `theirs` the ends that only the kernel keeps.

    The host finds the kernel's sockets at `outside`, the guest makes them at `inside`. Raises
    `LaunchError` when there are no descriptors left.
    """

    kernel_type = WireKernel

    def __init__(self, outside: str, inside: str, limits: Limits, *, unused: bool = False) -> None:
        key, nonce = secrets.token_hex(32), secrets.token_hex(8)
        self.connection = Connection("ipc", outside, PORTS, key.encode())
        self.nonce = nonce.encode()
        packet = {
            "key": key,
            "transport": "ipc",
            "ip": inside,
            "ports": PORTS,
            "nonce": nonce,
            "hidden": HIDDEN,
            "pair": 0,
            "unused": unused,
            **self.more(),
        }
        try:
            with ExitStack() as undo, ExitStack() as undo_theirs:
                self.guest, self.guest_end = socket.socketpair(
                    socket.AF_UNIX, socket.SOCK_SEQPACKET
                )
                undo_theirs.callback(self.guest_end.close)
                self.guest.setblocking(False)
                self.pump = self.new_pump(limits)
                undo.callback(self.pump.close)
                self.orphan, self.stdio = self.pump.new_pair()
                for fd in self.stdio:
                    undo_theirs.callback(os.close, fd)
                packet["pair"] = self.orphan.number
                socket.send_fds(self.guest, [json.dumps(packet).encode()], list(self.stdio))
                undo.pop_all()
                self.theirs = undo_theirs.pop_all()
        except OSError as error:
            raise LaunchError(f"no pipes for the kernel can be made: {error}") from error

    def new_pump(self, limits: Limits) -> Pump:
        """What makes the kernel's pipes; `guest` is there."""
        return Pump(self.guest, limits.max_streams, limits.output_bytes_per_s)

    def more(self) -> dict[str, Any]:
        """What else the guest is to know from the beginning."""
        return {}


@asynccontextmanager
async def guest_kernel(
    ends: GuestEnds,
    process: Process,
    nursery: trio.Nursery,
    spec: LaunchSpec,
    isolation: Isolation,
    deadline: float,
    *,
    unused: bool = False,
) -> AsyncIterator[WireKernel]:
    """Wait until the launched guest is ready; leaving ends its process and all that it started.

    One that is `unused` is not asked for anything until its `adopt`, nor politely to end.
    Raises `LaunchTimeout` at `deadline`, and what prevented the start before.
    """
    kernel: WireKernel | None = None
    grace_s = 0.0
    with ExitStack() as stack:
        try:
            with trio.move_on_at(deadline) as startup:
                expect(ends.nonce)
                hello = await _hear(ends.guest)
                if hello.get("ready") is not True:
                    await _explain(hello, process, ends.orphan)
                kernel = ends.kernel_type(
                    KernelInfo(
                        "python", str(hello.get("python", ""))[:100], True, isolation, process.pid
                    ),
                    process,
                    stack.enter_context(Channels(ends.connection, spec.limits)),
                    spec.limits,
                    pump=ends.pump,
                    nonce=ends.nonce,
                )
                kernel.orphan(ends.orphan)
                await nursery.start(kernel.run)
                await kernel.wait_welcome()
                if unused:
                    kernel.unused = True
                else:
                    kernel.prefetch()
            if kernel is None or startup.cancelled_caught:
                raise LaunchTimeout(f"the kernel was not ready after {spec.startup_timeout_s:g} s")
            grace_s = spec.close_grace_s
            yield kernel
        finally:
            with trio.CancelScope(shield=True):
                if kernel is not None:
                    await kernel.shutdown(0 if kernel.unused else grace_s)
                await process.kill()


async def _hear(guest: socket.socket) -> dict[str, Any]:
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
        if hello.get("untested"):
            raise GuestUntested(error[:2_000])
        raise LaunchError(error[:2_000])
    died = await process.wait_exited()
    printed = b"".join(data for pipe in orphan.pipes for data in pipe.drain())
    if died.signal is None and died.code:
        raise LaunchError(f"the kernel ended while it started ({died}): {last_line(printed)}")
    raise KernelDied(died, printed)
