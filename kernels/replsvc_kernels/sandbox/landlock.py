"""Landlock: which paths a session may open, whatever the mounts would allow.

Rules bind to inodes, so that everything must be mounted first, and all that is private to a session
should lie beneath few directories. What is mounted later beneath a ruled directory is ruled too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from stat import S_ISDIR

from . import _libc

_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
# What a rule on something else than a directory may speak of.
_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV


@dataclass(frozen=True)
class Rights:
    """What a kernel can be told to forbid: bits of `handled_access_fs` and so on."""

    files: int
    tcp: int
    scopes: int


def rights(abi: int) -> Rights:
    """What Landlock `abi` can forbid; later ones know everything that earlier ones do.

    1: the first 13 rights to files. 2: moving between directories, which 1 always forbids.
    3: truncating. 4: TCP. 5: ioctl on devices. 6: abstract unix sockets and signals of outsiders.
    What came after 6 is about logging and threads.
    """
    files = (1 << 13) - 1
    for since, bit in ((2, 1 << 13), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if abi >= since:
            files |= bit
    return Rights(files if abi else 0, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)


def supported() -> int:
    """The kernel's Landlock ABI; 0 when it has none, it is off, or an outer sandbox hides it."""
    try:
        return _libc.syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def restrict(read_write: Iterable[str], read_only: Iterable[str], *, tcp: bool = True) -> int:
    """Leave this process and all that it starts these paths and what is beneath them, for ever.

    Read-only includes executing. Outsiders' abstract unix sockets and signals to them are forbidden
    from ABI 6 on; without `tcp`, TCP binds and connects from ABI 4 on (loopback as well). Sets
    no_new_privs. Returns the ABI that was enforced, see `rights`; 0 means nothing was, and is no
    error: the caller knows whether it can do without. Raises `OSError`, for one when a path is not
    there; then nothing is restricted.
    """
    abi = supported()
    if not abi:
        return 0
    handled = rights(abi)
    ruleset = _create(handled, tcp=tcp)
    try:
        for paths, allowed in ((read_write, handled.files), (read_only, _READ_ONLY)):
            for path in paths:
                _allow(ruleset, path, allowed)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _libc.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return abi


def _create(handled: Rights, *, tcp: bool) -> int:
    # An older kernel takes a longer `struct landlock_ruleset_attr` if what it doesn't know is 0.
    attributes = struct.pack("=QQQ", handled.files, 0 if tcp else handled.tcp, handled.scopes)
    return _libc.syscall("landlock_create_ruleset", attributes, len(attributes), 0)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    where = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not S_ISDIR(os.fstat(where).st_mode):
            allowed &= _FILE
        # The packed `struct landlock_path_beneath_attr`.
        _libc.syscall(
            "landlock_add_rule", ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, where), 0
        )
    finally:
        os.close(where)
