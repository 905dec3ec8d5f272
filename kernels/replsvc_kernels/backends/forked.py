"""A forked kernel's process and its pid namespace, held by descriptors."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio

from replsvc_kernels.backends.base import Process
from replsvc_kernels.messages import Exit

# How long a kernel's exit status may take to come from its server once the kernel has ended.
STATUS_S = 0.2
PROCESS_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9


def host_pid(pidfd: int) -> int | None:
    """The pid, as this process sees it, of what a pidfd from another namespace stands for."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            pid = int(line.split()[1])
            return pid if pid > 0 else None
    return None


class ForkedProcess(Process):
    """See the module. `run` watches it; its fork server reports how it ended.

    `interrupt` has the server send SIGINT where the kernel can't signal a group by descriptor.
    """

    def __init__(
        self, pidfd: int, init: int, *, interrupt: Callable[[], bool], forget: Callable[[], None]
    ) -> None:
        self._pidfd, self._init = pidfd, init
        self._interrupt, self._forget = interrupt, forget
        self.pid = host_pid(pidfd)
        self.number = 0
        """What its server knows it by."""
        self._exit: Exit | None = None
        self._reported, self._exited, self._swept = trio.Event(), trio.Event(), trio.Event()
        self.leaves: Callable[[], bool] = bool
        """Whether we go and it stays: then neither cancelling nor `kill` ends it."""

    async def run(self) -> None:
        """Watch until nothing is left of it, then let the descriptors go; cancelling ends it."""
        try:
            await trio.lowlevel.wait_readable(self._pidfd)
            with trio.move_on_after(STATUS_S):
                await self._reported.wait()
            self._settle(Exit())
            self._end()
            await trio.lowlevel.wait_readable(self._init)
        finally:
            if not self.leaves():
                with trio.CancelScope(shield=True):
                    self._end()
                    await trio.lowlevel.wait_readable(self._init)
            self._settle(Exit(signal=signal.SIGKILL))
            self._swept.set()
            for fd in {self._pidfd, self._init}:
                os.close(fd)
            self._forget()

    @property
    def handles(self) -> tuple[int, int]:
        """The pidfds of the kernel and of its init; they are ours."""
        return self._pidfd, self._init

    def report(self, exit_: Exit) -> None:
        """From the server: how the kernel ended."""
        self._exit = self._exit or exit_
        self._reported.set()

    def _settle(self, exit_: Exit) -> None:
        if not self._exited.is_set():
            # While its groups can still be read.
            self._exit = self.accounts.explain(self._exit or exit_)
            self._exited.set()

    def _end(self) -> None:
        """A pid namespace ends with its init."""
        if not self._swept.is_set():
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
            if number == signal.SIGINT:
                return self._interrupt()
            signal.pidfd_send_signal(self._pidfd, number)
        return True

    async def kill(self) -> None:
        """See `Process.kill`."""
        if not self.leaves():
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
