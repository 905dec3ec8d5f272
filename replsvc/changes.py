"""Which files of a workspace have changed: a cell that touches none costs one system call.

The system's notices (inotify) say whether anything happened, and a walk over the workspace says
what: notices may be lost in a flood, a walk sees what is there. What is walked was written by
hostile code. Each directory is opened from the one above it, no link is followed, and only regular
files count.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# A workspace of more is looked at in part, and that is said.
MAX_ENTRIES = 10_000
MAX_DEPTH = 32
# Directories of one session that are watched; with more, each cell's end takes a walk.
MAX_WATCHES = 512

_CREATE, _MODIFY, _CLOSE_WRITE = 0x100, 0x2, 0x8
_MOVED_TO, _DELETE, _IGNORED, _OVERFLOW = 0x80, 0x200, 0x8000, 0x4000
_ONLY_DIRECTORIES, _NOT_LINKS = 0x01000000, 0x02000000
_MASK = _CREATE | _MODIFY | _CLOSE_WRITE | _MOVED_TO | _DELETE | _ONLY_DIRECTORIES | _NOT_LINKS
_HEAD = struct.Struct("iIII")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Changed:
    """Files that are new or not as they were, by path and size, and whether there may be more."""

    files: tuple[tuple[str, int], ...] = ()
    more: bool = False


class Notices:
    """One queue of notices for all workspaces: a user has few such queues, and many sessions.

    Where the system gives none, every workspace counts as touched, always. `read` is for one
    thread; `watch` for any.
    """

    def __init__(self) -> None:
        self._owners: dict[int, Workspace] = {}
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """No workspace may be looked at afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def watch(self, path: str, owner: Workspace) -> int | None:
        """Watch a directory; None when the system refuses."""
        if self._fd < 0:
            return None
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(path), _MASK)
        if number < 0:
            return None
        self._owners[number] = owner
        return number

    def forget(self, number: int) -> None:
        """Watch it no longer."""
        if self._owners.pop(number, None) is not None and self._fd >= 0:
            _libc.inotify_rm_watch(self._fd, number)

    def read(self) -> None:
        """Tell every owner what has happened since."""
        while self._fd >= 0:
            try:
                data = os.read(self._fd, 65_536)
            except BlockingIOError:
                return
            place = 0
            while place < len(data):
                number, mask, _, size = _HEAD.unpack_from(data, place)
                place += _HEAD.size
                name = data[place : place + size].rstrip(b"\0")
                place += size
                if mask & _OVERFLOW:
                    for owner in list(self._owners.values()):
                        owner.touched = True
                elif (owner_of := self._owners.get(number)) is not None:
                    if mask & _IGNORED:
                        del self._owners[number]
                    owner_of.notice(number, mask, name)


class Workspace:
    """The files below one directory. `look` and `prime` block for as long as a walk takes."""

    def __init__(self, root: Path, notices: Notices) -> None:
        self.root, self._notices = root, notices
        self.touched = True
        self._watched: dict[int, str] = {}
        self._written: set[str] = set()
        self._known: dict[str, tuple[int, ...]] | None = None
        self._unwatched = False

    def notice(self, number: int, mask: int, name: bytes) -> None:
        """A notice of the system's."""
        if mask & _IGNORED:
            self._watched.pop(number, None)
            return
        if _hidden(name):
            return
        self.touched = True
        if mask & (_MODIFY | _CLOSE_WRITE | _MOVED_TO) and len(self._written) < MAX_ENTRIES:
            # A clock may be too coarse to tell a file that was written twice at once.
            self._written.add(f"{self._watched.get(number, '')}{os.fsdecode(name)}")

    def forget(self) -> None:
        """Look at it no more; the next look starts anew."""
        for number in self._watched:
            self._notices.forget(number)
        self._watched.clear()
        self._written.clear()
        self._known, self.touched, self._unwatched = None, True, False

    def unchanged(self) -> bool:
        """Whether nothing can have changed since the last look."""
        self._notices.read()
        return not (self.touched or self._unwatched)

    def prime(self, most: int = MAX_ENTRIES) -> bool:
        """Take what is there as unchanged.

        False when there are more than `most` entries: then it is as if nobody had looked.
        """
        self.forget()
        self._known, self.touched = {}, False
        if self._walk(self._known, most) and most < MAX_ENTRIES:
            self.forget()
            return False
        return True

    def look(self) -> Changed:
        """What has changed since the last look; ask `unchanged` before.

        May be called in another thread.
        """
        before, self._known = self._known or {}, {}
        # What happens from here on is for the look after this one.
        self.touched = False
        written, self._written = self._written, set()
        more = self._walk(self._known, MAX_ENTRIES)
        found = tuple(
            (path, facts[-1])
            for path, facts in sorted(self._known.items())
            if before.get(path) != facts or path in written
        )
        return Changed(found, more)

    def _walk(self, found: dict[str, tuple[int, ...]], most: int) -> bool:
        """Put every file's facts into `found`; whether some were left out."""
        try:
            root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        more = False
        entries = 0
        # Directories that are open, with their paths: as many as the tree is deep, at the most.
        stack = [(root, "", self._entries(root, ""))]
        try:
            while stack:
                fd, path, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    os.close(fd)
                    stack.pop()
                    continue
                entries += 1
                if entries > most:
                    return True
                here = f"{path}{entry.name}"
                with suppress(OSError):  # gone meanwhile, or not ours to see
                    if entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        # Not its ctime: files are given to a new kernel's user as they are.
                        found[here] = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                    elif entry.is_dir(follow_symlinks=False):
                        if len(stack) >= MAX_DEPTH:
                            more = True
                            continue
                        below = _open_directory(entry.name, fd)
                        stack.append((below, f"{here}/", self._entries(below, f"{here}/")))
        finally:
            for fd, _, _ in stack:
                os.close(fd)
        return more

    def _entries(self, fd: int, path: str) -> Iterator[os.DirEntry[str]]:
        """What is in an open directory, watched from before it is read."""
        self._watch(fd, path)
        with suppress(OSError), os.scandir(fd) as entries:
            for entry in entries:
                if not _hidden(os.fsencode(entry.name)):
                    yield entry

    def _watch(self, fd: int, path: str) -> None:
        if self._unwatched:
            return
        number = None
        if len(self._watched) < MAX_WATCHES:
            number = self._notices.watch(f"/proc/self/fd/{fd}/.", self)
        if number is None:
            self._unwatched = True
        else:
            self._watched[number] = path


def _hidden(name: bytes) -> bool:
    """What programs keep for themselves is no result of a cell's."""
    return name.startswith(b".") or name == b"__pycache__"


def _open_directory(name: str, parent: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def open_file(root: Path, path: str) -> int:
    """A descriptor of a regular file below `root`, to read; no part of `path` may be a link.

    Raises `OSError`, also for what is no regular file.
    """
    *parents, name = path.split("/")
    if not name or "." in (*parents, name) or ".." in (*parents, name):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            below = _open_directory(parent, here)
            os.close(here)
            here = below
        # Not blocking: what was a file may have become a pipe that nobody writes to.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd
