"""The fork server's root: a file system of its own, read-only, with what an environment needs.

All that is a session's lies below `SESSION`, a mount of its own for each session
(`session_root.py`): Landlock's rules hold for a directory and what is mounted below it later.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import environment, mounts
from .mounts import NO_EXEC, NO_SUID, READ_ONLY, SAFE

SESSION = "/session"
# While the server looks at it: the directory whose entries are the sessions' directories.
SESSIONS = "/session/all"
# What a session may write below, and what it may read: for Landlock.
WRITABLE = (SESSION, "/dev")
READABLE = ("/",)

# Programs look for these at the names on the left.
LINKS = {
    "/proc": "session/proc", "/tmp": "session/tmp", "/var/tmp": "../session/tmp",  # noqa: S108
    "/etc/passwd": "../session/etc/passwd", "/etc/group": "../session/etc/group",
    "/etc/mtab": "../proc/self/mounts",
    "/dev/fd": "../proc/self/fd", "/dev/stdin": "../proc/self/fd/0",
    "/dev/stdout": "../proc/self/fd/1", "/dev/stderr": "../proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
}  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
# What /proc says of the machine and not of the session, where it is not kept from it already by its
# mode; nothing in a session's /proc can be written.
MASKED = (
    "acpi", "asound", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup",
    "kpagecount", "kpageflags", "latency_stats", "sched_debug", "scsi", "sysrq-trigger",
    "timer_list", "timer_stats",
)  # fmt: skip
_DIRECTORIES = ("/dev/pts", "/dev/shm", "/etc", "/var", SESSIONS, "/session/proc", "/session/tmp")  # noqa: S108
_SMALL = 256 * 1024
_FILES = {
    "/etc/hosts": "127.0.0.1 localhost session\n::1 localhost session\n",
    # No resolver: a name that is not in hosts is unknown at once.
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True)
class ServerRoot:
    """A root that stands at `staging`; `trees` as `mounts.has_trees`.

    `carried` are the paths below `/session/tmp` that every session's own `/tmp` shows again: those
    of an environment that lies in `/tmp`. `masked_files` and `masked_directories` are the names in
    `/proc` that sessions find empty.
    """

    staging: str
    trees: bool
    carried: tuple[str, ...]
    masked_files: tuple[str, ...]
    masked_directories: tuple[str, ...]


def build(staging: str, environment_paths: Sequence[str], sessions: str) -> ServerRoot:
    """Build the root at `staging`, an empty directory, in a mount namespace that we may change.

    `environment_paths` are the guest's directory and what `environment.read_only_paths` said;
    `sessions` is the directory with the sessions' directories. Done where the outside can still be
    seen: as root before the user namespace is entered, so that a session's user need not be able
    to reach the paths; otherwise after it. Then `enter`. Raises `EnvironmentRefused`, `OSError`.
    """
    environment.check_apart([*environment.SYSTEM, *environment_paths], sessions)
    trees = mounts.has_trees()
    mounts.make_private()
    mounts.mount(staging, "tmpfs", NO_SUID, "size=4m,nr_inodes=16k,mode=755")
    for path in _DIRECTORIES:
        os.makedirs(staging + path, exist_ok=True)
    for path, target in LINKS.items():
        os.symlink(target, staging + path)
    for path, text in _FILES.items():
        with open(staging + path, "w", encoding="utf-8") as file:
            file.write(text)
    for name in DEVICES:
        _show(f"/dev/{name}", staging, READ_ONLY | NO_SUID | NO_EXEC, trees)
    shown = [
        path
        for wanted in _outermost([*environment.SYSTEM, *environment_paths])
        for path in _show(wanted, staging, READ_ONLY | SAFE, trees)
    ]
    mounts.bind(sessions, staging + SESSIONS, SAFE, trees)
    carried = [SESSION + path for path in shown if path.startswith("/tmp/")]  # noqa: S108
    carried += [SESSION + path[4:] for path in shown if path.startswith("/var/tmp/")]  # noqa: S108
    masked = [name for name in MASKED if os.path.exists(f"/proc/{name}")]
    directories = [name for name in masked if os.path.isdir(f"/proc/{name}")]
    files = [name for name in masked if name not in directories]
    return ServerRoot(staging, trees, tuple(carried), tuple(files), tuple(directories))


def enter(root: ServerRoot) -> None:
    """Make it our root, with a `/proc` of our pid namespace; nothing else can be seen any more.

    For a process born in the server's pid namespace, after the user namespace was entered and a
    mount namespace made in that. Raises `OSError`.
    """
    mounts.make_private()
    if root.trees:
        # A copy: what came along from a namespace with more rights can't be moved.
        with mounts.closing(mounts.tree(root.staging, 0)) as copy:
            mounts.attach(copy, root.staging)
    else:
        mounts.bind(root.staging, root.staging, 0, trees=False)
    mounts.mount(f"{root.staging}{SESSION}/proc", "proc", SAFE | NO_EXEC)
    mounts.make_read_only(root.staging, SAFE)
    mounts.pivot(root.staging)


def mount_temporary() -> None:
    """Give the server itself a small `/tmp` that it can write to, once it has entered its root.

    Not where `carried` paths lie in there: it would hide them. Raises `OSError`.
    """
    place = f"{SESSION}/tmp"  # noqa: S108 - in our own root
    mounts.mount(place, "tmpfs", SAFE | NO_EXEC, "size=16m,nr_inodes=1k,mode=700")


def _outermost(paths: Iterable[str]) -> list[str]:
    """Paths that exist, without those that lie in another: that one shows them already."""
    chosen: list[str] = []
    for path in sorted(set(paths)):
        inside = any(path.startswith(one.rstrip("/") + "/") and not os.path.islink(one)
                     for one in chosen)  # fmt: skip
        if os.path.lexists(path) and not inside:
            chosen.append(path)
    return chosen


def _show(path: str, staging: str, attributes: int, trees: bool) -> list[str]:
    """Show a path of the outside at the same place inside: a link as link, else as a bind.

    A link on the way to it is shown as a link, and the path followed from there. Returns what was
    added.
    """
    place, parts = "", path.split("/")[1:]
    while parts:
        place = f"{place}/{parts.pop(0)}"
        inside = staging + place
        if os.path.islink(place):
            # Ours are where the outside has a directory; a link of the outside is shown as it is.
            added = not os.path.lexists(inside)
            if added:
                os.symlink(os.readlink(place), inside)
            target = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
            rest = "/".join([target.rstrip("/"), *parts])
            reached = _show(rest, staging, attributes, trees) if parts else []
            return ([place] if added else []) + reached
        if parts:
            inside = _inside(staging, place)
            if os.path.ismount(inside):
                return []  # it is in what is shown already
            os.makedirs(inside, exist_ok=True)
    inside = _inside(staging, path)
    if os.path.lexists(inside):
        return []
    if os.path.isdir(path):
        os.mkdir(inside)
    elif path.startswith("/etc/") and os.path.getsize(path) <= _SMALL:
        # A copy: each mount here is copied again for every session.
        shutil.copyfile(path, inside)
        return [path]
    else:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
    mounts.bind(path, inside, attributes, trees)
    return [path]


def _inside(staging: str, path: str) -> str:
    """Where a path of the outside lies in the new root: `/tmp` and `/var/tmp` are links there."""
    for temporary in ("/var/tmp/", "/tmp/"):  # noqa: S108 - the outside's
        if path.startswith(temporary):
            return os.path.join(staging + SESSION, "tmp", path[len(temporary) :])
    return staging + path
