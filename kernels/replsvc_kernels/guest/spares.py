"""Descriptors kept for the next cell's pipes, whatever the user's code leaves open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource

# The two pipes that arrive at once; the rest can do with what they leave free.
COUNT = 2
# Out of the way of programs that expect low numbers to be free.
FIRST = 10
# A cell may have set itself a limit below what is needed to run the next one.
NEEDED = 64
# The exit status of a kernel that can't be given another cell; the host knows it.
NO_DESCRIPTORS = 171


class Spares:
    """`with` it there is room for them, unless the code has lowered even the hard limit.

    For the main thread.
    """

    def __init__(self) -> None:
        # None yet: who isolates this process closes what it does not know.
        self._held: list[int] = []
        self._theirs: tuple[int, int] | None = None

    def __enter__(self) -> None:
        while self._held:
            os.close(self._held.pop())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < NEEDED and soft != resource.RLIM_INFINITY:
            raised = NEEDED if hard == resource.RLIM_INFINITY else min(NEEDED, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            self._theirs = (soft, hard)

    def __exit__(self, *_: object) -> None:
        if self._theirs is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._theirs)
            self._theirs = None
        self._keep()

    def _keep(self) -> None:
        # Another thread of the user's may be faster: then there is nothing to keep.
        with contextlib.suppress(OSError):
            while len(self._held) < COUNT:
                self._held.append(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, FIRST))


def give_up() -> None:
    """End this process: it can't be given another cell."""
    os._exit(NO_DESCRIPTORS)
