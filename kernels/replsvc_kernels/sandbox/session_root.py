"""A session's own part of the file system, below `/session`, mounted for it alone."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import belongings, mounts
from .mounts import NO_EXEC, NO_SUID, READ_ONLY, SAFE
from .server_root import SESSION, SESSIONS, ServerRoot

WORK = "/session/work"
RUN = "/session/run"
TMP = "/session/tmp"
_PROC = "/session/proc"


@dataclass(frozen=True)
class Shown:
    """Something of the machine's that a session sees, at `target`: a path below its workspace.

    `source` is a detached mount's descriptor, made by whoever sees the machine (`mounts.tree`).
    """

    source: int
    target: str
    writable: bool


@dataclass(frozen=True)
class SessionRoot:
    """What a session's part is made of; sizes in bytes.

    `work` and `run`, the directory of the sockets, are names below the sessions' directory or
    descriptors of detached mounts; without a `work` there is an empty directory that nobody can
    write to, until `put_work`. `user` is the session's id inside; with `shared` both become that
    user's, as `belongings` says, else they are already.
    """

    user: int
    work: str | int | None
    run: str | int
    tmp_bytes: int
    tmp_files: int = 65_536
    shared_memory_bytes: int = 256 * 1024 * 1024
    shown: Sequence[Shown] = ()
    shared: bool = False


def build(server: ServerRoot, session: SessionRoot) -> None:
    """Mount a session's `/session`, `/dev/shm` and `/dev/pts` over the server's.

    For a process born in the session's pid namespace that has entered its other namespaces and
    still has capabilities. Other sessions' directories can't be reached afterwards. Raises
    `OSError` that names the step.
    """
    with contextlib.ExitStack() as stack:
        # Taken while they can be seen: what is mounted next lies over all of them.
        work = None if session.work is None else _Source.take(stack, server, session.work)
        run = _Source.take(stack, server, session.run)
        links = [(p, os.readlink(p)) for p in server.carried if os.path.islink(p)]
        carried = [
            (path, _Source.take(stack, server, path))
            for path in server.carried
            if not os.path.islink(path)
        ]
        # Ours and not the session's, which so can't move what is mounted on its entries.
        mounts.mount(SESSION, "tmpfs", SAFE | NO_EXEC, "size=64k,nr_inodes=64,mode=755")
        for path in (WORK, RUN, TMP, _PROC, f"{SESSION}/etc"):
            os.mkdir(path, 0o755)
        _mount_proc(server)
        if work is not None:
            work.put(WORK, SAFE)
        run.put(RUN, SAFE | NO_EXEC)
        if session.shared:
            # Before anything of the machine's is shown in there.
            for path in (WORK, RUN):
                belongings.give(path, session.user)
        _mount_temporary(TMP, SAFE, session.tmp_bytes, session.tmp_files)
        for path, link in links:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(link, path)
        for path, source in carried:
            source.make_mountpoint(path)
            source.put(path, READ_ONLY | SAFE)
    bytes_, files = session.shared_memory_bytes, session.tmp_files
    _mount_temporary("/dev/shm", SAFE | NO_EXEC, bytes_, files)  # noqa: S108 - its own
    mounts.mount("/dev/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=620")
    for one in session.shown:
        shown = _Source(one.source, detached=True)
        target = _below_work(one.target)
        _make_parents(target, session)
        shown.make_mountpoint(target)
        shown.put(target, SAFE if one.writable else READ_ONLY | SAFE)
    _name_users(session.user)
    mounts.make_read_only(SESSION, SAFE | NO_EXEC)


def put_work(server: ServerRoot, work: str | int, enter: Callable[[], None]) -> None:
    """Mount a workspace, as `SessionRoot.work`, for a session that was built without one.

    For the server itself: `enter` takes it into the session's mount namespace. Only where
    `server.trees`, and before the session has run anything. Raises `OSError`.
    """
    with contextlib.ExitStack() as stack:
        source = _Source.take(stack, server, work)
        enter()
        source.put(WORK, SAFE)


class _Source:
    """Something to be mounted: a detached mount, or a descriptor of what is mounted elsewhere."""

    def __init__(self, descriptor: int, detached: bool) -> None:
        self._descriptor = descriptor
        self._detached = detached

    @classmethod
    def take(cls, stack: contextlib.ExitStack, server: ServerRoot, place: str | int) -> _Source:
        """`place` is a descriptor, or a path, below the sessions' directory if it is relative."""
        if isinstance(place, int):
            return cls(place, detached=True)
        path = os.path.join(SESSIONS, place)
        if server.trees:
            descriptor = mounts.tree(path, 0)
        else:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        return cls(descriptor, detached=server.trees)

    def put(self, target: str, attributes: int) -> None:
        if self._detached:
            mounts.set_attributes(self._descriptor, attributes)
            mounts.attach(self._descriptor, target)
        else:
            # The link leads to where it was opened, even if that is covered by now.
            mounts.bind(f"/proc/self/fd/{self._descriptor}", target, attributes, trees=False)

    def make_mountpoint(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if stat.S_ISDIR(os.fstat(self._descriptor).st_mode):
            os.makedirs(path, exist_ok=True)
        elif not os.path.lexists(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))


def _mount_temporary(target: str, attributes: int, size: int, files: int) -> None:
    mounts.mount(target, "tmpfs", attributes, f"size={size},nr_inodes={files},mode=1777")


def _mount_proc(server: ServerRoot) -> None:
    # A process's magic links lead where they lead also from a /proc that nobody can write to.
    flags = SAFE | NO_EXEC | READ_ONLY
    try:
        mounts.mount(_PROC, "proc", flags, "hidepid=invisible")
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        mounts.mount(_PROC, "proc", flags)  # before Linux 5.8
    for name in server.masked_directories:
        mounts.mount(f"{_PROC}/{name}", "tmpfs", flags, "size=4k,nr_inodes=2,mode=555")
    for name in server.masked_files:
        mounts.cover("/dev/null", f"{_PROC}/{name}")


def _name_users(user: int) -> None:
    nobody = "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin"
    texts = {
        "passwd": f"root:x:0:0::/:/usr/sbin/nologin\nsession:x:{user}:{user}::{WORK}:/bin/sh\n"
        f"{nobody}\n",
        "group": f"root:x:0:\nsession:x:{user}:\nnogroup:x:65534:\n",
    }
    for name, text in texts.items():
        with open(f"{SESSION}/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def _below_work(target: str) -> str:
    path = os.path.normpath(os.path.join(WORK, target))
    if not path.startswith(WORK + "/"):
        raise ValueError(f"{target!r} does not lie below the workspace")
    return path


def _make_parents(target: str, session: SessionRoot) -> None:
    """Directories on the way to `target`, the session's own like the workspace."""
    place = WORK
    for part in os.path.dirname(target)[len(WORK) + 1 :].split("/"):
        place = os.path.join(place, part)
        if not os.path.isdir(place):
            os.mkdir(place, 0o755)
            if session.shared:
                belongings.give_one(place, session.user)
            else:
                os.chown(place, session.user, session.user, follow_symlinks=False)
