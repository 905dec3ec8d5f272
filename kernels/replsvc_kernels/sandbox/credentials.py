"""Who a session is: a uid without capabilities, groups, keyring or a way to gain any of them."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass

from . import _libc

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT = 24, 28, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAP_SETPCAP = 8
# NOROOT and NO_CAP_AMBIENT_RAISE, locked; NO_SETUID_FIXUP and KEEP_CAPS off, and locked too.
_SECUREBITS = 0x01 | 0x02 | 0x40 | 0x80 | 0x08 | 0x20
_MOST_CAPABILITIES = 64
_CAPABILITY_HEADER = struct.pack("=Ii", 0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
_KEYCTL_JOIN_SESSION_KEYRING = 1


@dataclass(frozen=True)
class Dropped:
    """What could not be had: supplementary groups that stay, and whether the keyring is new."""

    kept_groups: tuple[int, ...]
    own_keyring: bool


def drop(uid: int, gid: int, *, single: bool = False, umask: int = 0o022) -> Dropped:
    """Become `uid` and `gid` for ever, with no capability in any set and no_new_privs.

    `single` is for a user namespace that maps one uid and gid only, and for no namespace at all:
    the ids must be the present ones, and supplementary groups stay where the kernel doesn't let
    them go. Last of all the process is dumpable again, so that it can read its own /proc entries;
    whoever may not see it before must be kept out by its uid or its pid namespace. To be called
    after what needs capabilities (namespaces, mounts, raised limits) and before seccomp; Landlock
    may come before it too, which then names paths that `uid` could not walk to.
    Raises `OSError`; the process then is neither one nor the other and must end.
    """
    # Nobody of the new uid looks into it halfway, when it still has capabilities.
    _libc.prctl(_PR_SET_DUMPABLE, 0)
    os.umask(umask)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _close_ways_back()
    groups = _leave_groups(single=single)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _libc.syscall("capset", _CAPABILITY_HEADER, bytes(24))
    own_keyring = _join_keyring()
    _check(uid, gid)
    _libc.prctl(_PR_SET_DUMPABLE, 1)
    return Dropped(groups, own_keyring)


def _close_ways_back() -> None:
    """Empty the ambient and bounding sets and lock the secure bits.

    Without CAP_SETPCAP the last two can't be done: no_new_privs alone keeps a file from giving.
    """
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if not _capabilities()[0] & 1 << _CAP_SETPCAP:
        return
    _libc.prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    for capability in range(_MOST_CAPABILITIES):
        try:
            _libc.prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno != errno.EINVAL:  # past the last one
                raise
            break


def _leave_groups(*, single: bool) -> tuple[int, ...]:
    try:
        os.setgroups([])
    except PermissionError:
        # In a namespace whose one gid was mapped without privileges the kernel refuses it.
        if not single:
            raise
    return tuple(os.getgroups())


def _join_keyring() -> bool:
    """Leave the operator's session keyring for a new one, charged to the uid we have now."""
    try:
        _libc.syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # No keys here, an outer sandbox (Docker's), or the quota of a uid with many sessions.
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EDQUOT):
            raise
        return False
    return True


def _capabilities() -> tuple[int, int, int]:
    """The effective, permitted and inheritable sets."""
    data = bytearray(24)
    _libc.syscall("capget", _CAPABILITY_HEADER, _libc.buffer(data))
    low = struct.unpack("=6I", data)
    return (low[0] | low[3] << 32, low[1] | low[4] << 32, low[2] | low[5] << 32)


def _check(uid: int, gid: int) -> None:
    """Never go on as somebody else: some of these calls have ways to fail that say nothing."""
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3 or any(_capabilities()):
        raise OSError(errno.EPERM, f"could not become uid {uid}, gid {gid} without capabilities")
