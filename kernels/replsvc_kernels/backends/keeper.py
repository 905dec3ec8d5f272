"""What a fork server's kernels live below, and how long."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import trio


class Keeper:
    """Pid 1 of a server's pid namespace, which lives until the server and its kernels have ended.

    It ends when the last writer of a pipe does: we are the only one.
    """

    def __init__(self) -> None:
        self.held, self._hold = os.pipe2(os.O_CLOEXEC)
        self._users = 1
        self.leaves: Callable[[], bool] = bool
        """Whether we go and it stays, held by others too: then cancelling does not end it."""

    def take(self) -> None:
        """Another one of its processes is to live."""
        self._users += 1

    def give_back(self) -> None:
        """One of them has ended."""
        self._users -= 1
        if self._users == 0:
            os.close(self._hold)

    async def watch(self, pidfd: int, parent: trio.Process | None) -> None:
        """Live as long as it does; cancelling ends it, and with it all that is left below it.

        `parent` is the process that we started, if we did: it waits for the keeper and ends then,
        or, where the keeper may outlive us, has ended long ago.
        """
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            with trio.CancelScope(shield=True):
                if not self.leaves():
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    await trio.lowlevel.wait_readable(pidfd)
                if parent is not None:
                    await parent.wait()
            os.close(pidfd)
