"""Namespaces: the user namespace of a fork server, and those of each session inside it.

A process of one thread enters them; none of this may be called from a threaded coordinator.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from . import _libc

NEWNS = 0x00020000
NEWCGROUP = 0x02000000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
_NAMES = {
    NEWNS: "NEWNS", NEWCGROUP: "NEWCGROUP", NEWUTS: "NEWUTS", NEWIPC: "NEWIPC",
    NEWUSER: "NEWUSER", NEWPID: "NEWPID", NEWNET: "NEWNET",
}  # fmt: skip

ROOT = "root"
SUBORDINATE = "subordinate"
SINGLE = "single"

FIRST_SESSION_ID = 1000
# 65534 is what unmapped ids look like, so that no session may be it.
MOST_SESSIONS = 60_000

_CAP_SYS_ADMIN = 21
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


# Ids


@dataclass(frozen=True)
class IdRange:
    """`count` ids: from `inside` on in the namespace, from `outside` on outside of it."""

    inside: int
    outside: int
    count: int


@dataclass(frozen=True)
class IdMaps:
    """Which ids a user namespace has, and who writes its maps: `ROOT`, `SUBORDINATE`, `SINGLE`.

    With `ROOT` and `SUBORDINATE`, 0 is the server and each session has an id from
    `FIRST_SESSION_ID` on, the same for user and group; with `SINGLE` all share `FIRST_SESSION_ID`.
    """

    how: str
    users: tuple[IdRange, ...]
    groups: tuple[IdRange, ...]

    @property
    def sessions(self) -> range:
        """The ids that sessions can have, each of its own if there are several."""
        count = min(self.users[-1].count, self.groups[-1].count)
        return range(FIRST_SESSION_ID, FIRST_SESSION_ID + count)

    @property
    def server(self) -> int:
        """The id that the fork server itself has inside."""
        return self.users[0].inside

    def outside(self, inside: int) -> tuple[int, int]:
        """User and group outside of the namespace of the id `inside`. Raises `ValueError`."""
        return _outside(self.users, inside), _outside(self.groups, inside)


def _outside(ranges: Sequence[IdRange], inside: int) -> int:
    for one in ranges:
        if one.inside <= inside < one.inside + one.count:
            return one.outside + inside - one.inside
    raise ValueError(f"the id {inside} is not mapped")


def maps_for_root(first: int, count: int = MOST_SESSIONS, *, stays: bool = False) -> IdMaps:
    """Ids from `first` on, which must belong to nobody on this machine; root writes the maps.

    No id inside is root outside: files of root's are nobody's, also for the server. With `stays`
    the server is root outside too, sessions are not: for a root that may not mount (`may_mount`),
    whose server could not reach otherwise what it has to show.
    """
    if not 0 < count <= MOST_SESSIONS or not 0 < first <= 0xFFFF_FFFE - count - 1:
        raise ValueError(f"no range of {count} ids from {first} on can be mapped")
    ranges = (IdRange(0, 0 if stays else first, 1), IdRange(FIRST_SESSION_ID, first + 1, count))
    return IdMaps(ROOT, ranges, ranges)


def maps_from_subordinate_ids(subuid: str = "/etc/subuid", subgid: str = "/etc/subgid") -> IdMaps:
    """The ranges that this machine's administrator gave to our user; newuidmap writes the maps.

    0 inside is ourselves. Raises `LookupError`, saying what is missing.
    """
    for program in ("newuidmap", "newgidmap"):
        if not any(os.access(os.path.join(d, program), os.X_OK) for d in os.get_exec_path()):
            raise LookupError(f"there is no program {program} (package uidmap or shadow-utils)")
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise LookupError(f"the user {os.getuid()} has no name in /etc/passwd") from None
    first_user, users = _largest_range(subuid, name)
    first_group, groups = _largest_range(subgid, name)
    count = min(users, groups, MOST_SESSIONS)
    return IdMaps(
        SUBORDINATE,
        (IdRange(0, os.getuid(), 1), IdRange(FIRST_SESSION_ID, first_user, count)),
        (IdRange(0, os.getgid(), 1), IdRange(FIRST_SESSION_ID, first_group, count)),
    )


def _largest_range(path: str, name: str) -> tuple[int, int]:
    ranges = []
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        for line in file:
            owner, _, rest = line.strip().partition(":")
            first, _, count = rest.partition(":")
            if owner in (name, str(os.getuid())) and first.isdigit() and count.isdigit():
                ranges.append((int(count), int(first)))
    if not ranges:
        raise LookupError(f"{path} has no line for {name}")
    count_, first_ = max(ranges)
    return first_, count_


def maps_for_one_id() -> IdMaps:
    """Our own user and group and no other: every session runs as ourselves."""
    return IdMaps(
        SINGLE,
        (IdRange(FIRST_SESSION_ID, os.getuid(), 1),),
        (IdRange(FIRST_SESSION_ID, os.getgid(), 1),),
    )


def may_mount() -> bool:
    """Whether we may mount outside of a user namespace: root in a container may not."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            (effective,) = [line.split()[1] for line in file if line.startswith("CapEff:")]
    except OSError:
        return False  # no Linux
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


# Entering


def assert_one_thread() -> None:
    """Raise `RuntimeError` when this process has more than one thread."""
    count = len(os.listdir("/proc/self/task"))
    if count != 1:
        raise RuntimeError(f"namespaces are entered by a process of one thread; this has {count}")


def _call(what: str, name: str, *arguments: int) -> None:
    try:
        _libc.syscall(name, *arguments)
    except OSError as error:
        number = error.errno or 0
        raise OSError(number, f"{what}: {os.strerror(number)}") from None


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for new ones. Raises `OSError`, `RuntimeError`."""
    assert_one_thread()
    names = "|".join(name for flag, name in _NAMES.items() if flags & flag)
    _call(f"unshare({names})", "unshare", flags)


def setns(descriptor: int, flag: int) -> None:
    """Enter the namespace that `descriptor` stands for. Raises `OSError`."""
    _call(f"setns({_NAMES[flag]})", "setns", descriptor, flag)


def open_own(kind: str) -> int:
    """A descriptor of our own namespace of a kind: `pid`, `mnt`, `net` ... Raises `OSError`."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


def enter_user_namespace(maps: IdMaps) -> None:
    """Enter a new user namespace with these ids; we are `maps.server` and have every capability.

    It needs `/proc`, and is done before anything of ours is hidden from the outside. Raises
    `OSError` that names the step; then the process may be in a namespace without ids, and ends.
    """
    if maps.how == SINGLE:
        unshare(NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", _lines(maps.users))
        _write("/proc/self/gid_map", _lines(maps.groups))
        return
    with _writer(maps) as written:
        unshare(NEWUSER)
        written()
    # The group first: after the user we might not be allowed to.
    os.setresgid(0, 0, 0)
    os.setgroups([])
    os.setresuid(0, 0, 0)


def _lines(ranges: Sequence[IdRange]) -> str:
    return "\n".join(f"{one.inside} {one.outside} {one.count}" for one in ranges)


def _write(path: str, text: str) -> None:
    # One write: a second one to a map is refused.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write({path}): {error.strerror}") from None
    finally:
        os.close(descriptor)


class _writer:  # noqa: N801 - used as a function
    """A child that stays outside of the new namespace, for only there maps of ranges are written.

    It writes when `written()` is called; when the block ends before that it just ends.
    """

    def __init__(self, maps: IdMaps) -> None:
        self._maps = maps

    def __enter__(self) -> _writer:
        assert_one_thread()
        self._go, self._answer = os.pipe(), os.pipe()
        target = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                os.close(self._go[1])
                status = self._child(target)
            finally:
                os._exit(status)
        os.close(self._go[0])
        os.close(self._answer[1])
        return self

    def __call__(self) -> None:
        os.write(self._go[1], b"!")
        with open(self._answer[0], "rb", closefd=False) as file:
            said = file.read().decode(errors="replace")
        if said != "ok":
            raise OSError(1, said or "the process that writes the id maps ended")

    def __exit__(self, *_: object) -> None:
        os.close(self._go[1])
        os.close(self._answer[0])
        os.waitpid(self._pid, 0)

    def _child(self, target: int) -> int:
        if not os.read(self._go[0], 1):
            return 0
        try:
            for kind, ranges in (("uid", self._maps.users), ("gid", self._maps.groups)):
                if self._maps.how == ROOT:
                    _write(f"/proc/{target}/{kind}_map", _lines(ranges))
                else:
                    _run(f"new{kind}map", str(target), *_lines(ranges).split())
        except OSError as error:
            os.write(self._answer[1], str(error.strerror or error).encode())
            return 1
        os.write(self._answer[1], b"ok")
        return 0


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        raise OSError(1, f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")


# A session's


def new_pid_namespace_for_children() -> None:
    """What is forked next is pid 1 of a new pid namespace, what follows is in it too.

    Ends with `setns(home, NEWPID)`, `home` being `open_own("pid")` from before.
    """
    unshare(NEWPID)


def enter_session_namespaces(hostname: str) -> None:
    """New mount, ipc, uts and net namespaces, with loopback up and a host name.

    The pid namespace is entered by being born in it. Raises `OSError` that names the step.
    """
    unshare(NEWNS | NEWIPC | NEWUTS | NEWNET)
    loopback_up()
    socket.sethostname(hostname)


def enter_cgroup_namespace() -> None:
    """The cgroup that we are in looks like the topmost from now on. Raises `OSError`."""
    unshare(NEWCGROUP)


def loopback_up() -> None:
    """Bring up `lo`, the only interface of a new net namespace. Raises `OSError`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack_from("h", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))
