"""Inherited descriptors: what a session did not get on purpose, it must not have."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from . import _libc

_LAST = 2**32 - 1


def close_fds(keep: Iterable[int]) -> None:
    """Close every descriptor but those in `keep`; 0, 1 and 2 are nothing special.

    Raises `OSError` when the kernel has no close_range and there is no /proc to list them from.
    """
    kept = sorted(set(keep))
    try:
        for first, last in _gaps(kept):
            _libc.syscall("close_range", first, last, 0)
    except OSError as error:
        # EPERM is how a sandbox older than the call refuses it.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        _close_listed(frozenset(kept))


def _gaps(kept: list[int]) -> list[tuple[int, int]]:
    starts = [0, *(one + 1 for one in kept)]
    ends = [*(one - 1 for one in kept), _LAST]
    return [(first, last) for first, last in zip(starts, ends) if first <= last]


def _close_listed(kept: frozenset[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError as error:
                if error.errno != errno.EBADF:  # the listing's own
                    raise
