"""Pid 1 of a session's pid namespace: a few hundred bytes that do nothing, and do it well.

It ignores SIGCHLD, so that the kernel reaps whatever is orphaned onto it, and waits for ever: it
uses no CPU and 8 KB. Signals from inside its namespace can't end it, and its end ends everything
in there. It lives until somebody kills it: it never asks for a parent-death signal, which would
come when the *thread* that started it ends, and take sessions along that outlive their server.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct

from .. import _libc
from .._syscalls import ARCHITECTURE
from ..close_fds import close_fds
from ._code import CODE

_MACHINES = {"x86_64": 62, "aarch64": 183}
_BASE = 0x40_0000  # aligned to the largest page of either architecture
_HEADERS = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474_E551
_EXECUTABLE, _WRITABLE, _READABLE = 1, 2, 4

_MFD_CLOEXEC, _MFD_ALLOW_SEALING, _MFD_EXEC = 1, 2, 16
_F_ADD_SEALS, _ALL_SEALS = 1033, 0xF
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_NAME = b"replsvc-init"


def image(architecture: str = ARCHITECTURE) -> bytes:
    """A static ELF executable of `architecture`. Raises `KeyError` when we have no code for it."""
    code = CODE[architecture]
    start = _HEADERS.size + 2 * _SEGMENT.size
    size = start + len(code)
    header = _HEADERS.pack(
        b"\x7fELF\x02\x01\x01",  # 64 bit, little-endian, version 1
        2,  # ET_EXEC
        _MACHINES[architecture],
        1,
        _BASE + start,
        _HEADERS.size,
        0,
        0,
        _HEADERS.size,
        _SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    text = (_PT_LOAD, _EXECUTABLE | _READABLE, 0, _BASE, _BASE, size, size, 0x1_0000)
    stack = (_PT_GNU_STACK, _WRITABLE | _READABLE, 0, 0, 0, 0, 0, 16)
    return header + _SEGMENT.pack(*text) + _SEGMENT.pack(*stack) + code


def prepare() -> str | None:
    """Make the program ready once, for any number of `spawn`s; returns its path, for this process.

    The path names a sealed memory file behind /proc/self/fd that stays open as long as the process.
    It is tried by running it, since a namespace whose first process can't be executed is lost; so
    call this before `unshare(CLONE_NEWPID)`. None when there is no code for this machine, or when
    memory files may not be executed here: `spawn` then forks.
    """
    if ARCHITECTURE not in CODE:
        return None
    try:
        fd = _memory_file(image())
    except OSError:
        return None
    path = f"/proc/self/fd/{fd}"
    try:
        pid = os.posix_spawn(path, [path], {})
    except OSError:
        os.close(fd)
        return None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return path


def _memory_file(content: bytes) -> int:
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    try:
        fd = _libc.syscall("memfd_create", _NAME, flags | _MFD_EXEC)
    except OSError:  # Linux before 6.3 doesn't know the last flag, and needs none
        fd = _libc.syscall("memfd_create", _NAME, flags)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    return fd


def spawn(program: str | None) -> int:
    """Start the init that `prepare` made ready; returns its pid.

    It is pid 1 of the namespace that the caller's children are born in: call it first after
    `unshare(CLONE_NEWPID)`. Starts in 0.3 ms; the fallback, a fork of this process that runs no
    code of anybody's, in as long as a fork takes. It keeps no descriptor. Raises `OSError`; the
    namespace then is unusable.

    To end a session, kill it, then wait for the children that were forked into the namespace, and
    only then for the init: it can't be reaped before they are.
    """
    if program is not None:
        return os.posix_spawn(program, [_NAME.decode()], {})
    pid = os.fork()
    if pid == 0:
        try:
            _wait_for_ever()
        finally:
            os._exit(1)
    return pid


def _wait_for_ever() -> None:
    """What the machine code does, in Python."""
    _libc.prctl(_PR_SET_DUMPABLE, 0)
    _libc.syscall("prctl", _PR_SET_NAME, _NAME, 0, 0, 0)
    os.setsid()
    # Python's handlers and what its embedder ignores: pid 1 is safe with the defaults.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    close_fds(())
    while True:
        signal.pause()
