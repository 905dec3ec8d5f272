"""The allow-list of system calls: the layer that several attacks are held by alone.

What is allowed and why stands in `_seccomp_policy.py`. The program is classic BPF, built without
libseccomp, which an environment need not have.
"""

from __future__ import annotations

import ctypes
import errno
import functools

from . import _bpf, _libc
from . import _seccomp_policy as policy
from ._syscalls import ARCHITECTURE, TABLES

_SET_MODE_FILTER = 1
_FLAG_TSYNC = 1
_PR_SET_NO_NEW_PRIVS = 38


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


@functools.cache
def program(architecture: str = ARCHITECTURE) -> bytes:
    """The filter for `architecture` (`x86_64` or `aarch64`), 8 bytes an instruction.

    Built once, in less than a millisecond: call it before forking. Raises `OSError` (ENOSYS) for an
    architecture that no policy was written for.
    """
    if architecture not in TABLES:
        raise OSError(errno.ENOSYS, f"there is no system call policy for {architecture}")
    names = {number: name for name, number in TABLES[architecture].items()}
    return _bpf.program(
        policy.AUDIT_ARCH[architecture],
        [_decision(names.get(number)) for number in range(max(names) + 1)],
        beyond=policy.ENOSYS,
        limit=policy.FOREIGN_FROM[architecture],
    )


def _decision(name: str | None) -> _bpf.Decision:
    if name is None or name in policy.HIDDEN:
        return policy.ENOSYS
    if name in policy.ALLOWED:
        return _bpf.ALLOW
    return policy.RULES.get(name, policy.EPERM)


def apply(filter_program: bytes | None = None) -> None:
    """Hold this process and all that it starts to the filter, for ever; sets no_new_privs.

    The last layer: those before it make calls that it refuses. Raises `OSError` when the kernel has
    no filters (ENOSYS, EINVAL), or when an outer sandbox refuses one.
    """
    code = program() if filter_program is None else filter_program
    described = _Program(len(code) // 8, code)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # The other threads too, if there are any: a forked child has none, another caller may.
    result = _libc.syscall("seccomp", _SET_MODE_FILTER, _FLAG_TSYNC, ctypes.byref(described))
    if result > 0:  # not an errno, but the thread that has a filter of its own
        raise OSError(errno.EBUSY, f"thread {result} has other filters than this one")
