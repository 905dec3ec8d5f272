"""The architectures whose system calls are known here, and this one."""

from __future__ import annotations

import errno
import os
import sys

from . import _syscalls_aarch64, _syscalls_x86_64

TABLES = {"x86_64": _syscalls_x86_64.NUMBERS, "aarch64": _syscalls_aarch64.NUMBERS}
# A 32 bit Python makes other system calls than its kernel's machine says.
ARCHITECTURE = os.uname().machine if sys.maxsize > 2**32 else "32 bit"


def number(name: str) -> int:
    """The number of the system call `name` here. Raises `OSError` (ENOSYS) when it has none."""
    try:
        return TABLES[ARCHITECTURE][name]
    except KeyError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name) from None
