"""From a launched kernel without our guest to a ready one: it has channels, and no pipes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replsvc_kernels._channels import Channels
from replsvc_kernels._wire import PRINTED_BYTES, WireKernel
from replsvc_kernels.backends.base import Connection, Process
from replsvc_kernels.backends.surroundings import last_line
from replsvc_kernels.kernel import (
    Kernel,
    KernelDied,
    KernelInfo,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
)


class LastPrinted:
    """What a kernel's process writes to its own fds 1 and 2: the last of it, to explain a death.

    Raises `LaunchError` when there are no descriptors left.
    """

    def __init__(self) -> None:
        self.kept = bytearray()
        try:
            self._fd, self.write_end = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise LaunchError(f"no pipe for the kernel can be made: {error}") from error
        os.set_blocking(self._fd, False)

    def read(self) -> bool:
        """Take what is there; False at the end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, 64 * 1024):
                self.kept += data
                del self.kept[:-PRINTED_BYTES]
            return False
        return True

    async def run(self) -> None:
        """Keep the pipe empty, until its end."""
        while self.read():
            await trio.lowlevel.wait_readable(self._fd)

    def close(self) -> None:
        """Close both ends that are still ours."""
        self.close_write_end()
        os.close(self._fd)

    def close_write_end(self) -> None:
        """The kernel has it now."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1


def too_late(spec: LaunchSpec) -> LaunchTimeout:
    """What to raise for a kernel that was not ready in time."""
    return LaunchTimeout(f"the kernel was not ready after {spec.startup_timeout_s:g} s")


@asynccontextmanager
async def foreign_kernel(
    info: KernelInfo,
    process: Process,
    connection: Connection,
    printed: LastPrinted,
    nursery: trio.Nursery,
    spec: LaunchSpec,
    deadline: float,
    *,
    message_interrupt_s: float | None = None,
) -> AsyncIterator[Kernel]:
    """Wait until the launched kernel answers; leaving ends it and all that it started.

    Raises `LaunchTimeout` at `deadline`, and what prevented the start before.
    """
    kernel: WireKernel | None = None
    grace_s = 0.0
    with contextlib.ExitStack() as stack:
        try:
            kernel = WireKernel(
                info,
                process,
                stack.enter_context(Channels(connection, spec.limits)),
                spec.limits,
                message_interrupt_s=message_interrupt_s,
                printed=printed.kept,
            )
            with trio.move_on_at(deadline) as startup:
                await nursery.start(kernel.run)
                await _ready(kernel, printed)
            if startup.cancelled_caught:
                raise too_late(spec)
            grace_s = spec.close_grace_s
            yield kernel
        finally:
            with trio.CancelScope(shield=True):
                if kernel is not None:
                    await kernel.shutdown(grace_s)
                else:
                    await process.kill()


async def _ready(kernel: WireKernel, printed: LastPrinted) -> None:
    try:
        await kernel.wait_ready()
    except KernelDied as died:
        if died.exit.signal is not None or not died.exit.code:
            raise
        printed.read()
        raise LaunchError(
            f"the kernel ended while it started ({died.exit}): {last_line(bytes(printed.kept))}"
        ) from died
