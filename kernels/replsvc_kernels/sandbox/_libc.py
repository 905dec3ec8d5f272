"""System calls by their names; a failure is an `OSError` with the kernel's number."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ._syscalls import number

# PyDLL keeps the interpreter's lock: none of these calls blocks, and between fork and exec there is
# nobody to let in.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def syscall(name: str, *arguments: Any) -> int:
    """Make the system call `name`; integers are passed as 64 bits, bytes and arrays as pointers.

    Raises `OSError`; ENOSYS too on an architecture whose numbers we don't have.
    """
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = _libc.syscall(ctypes.c_long(number(name)), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def buffer(data: bytearray) -> ctypes.Array[ctypes.c_char]:
    """What the kernel may write to, in place of `bytes`: shares the memory of `data`."""
    return (ctypes.c_char * len(data)).from_buffer(data)


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    """`prctl(2)`. Raises `OSError`."""
    return syscall("prctl", option, value, third, 0, 0)
