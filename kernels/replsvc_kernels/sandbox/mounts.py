"""Mounts: the calls, and a bind that is read-only as a whole or not there at all.

Needs a mount namespace that we may change, and changes only that. Failures are `OSError`s that
name the call and its target.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from . import _libc

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 0x1, 0x2, 0x4, 0x8
# What no session may find: a program that gives rights, a device.
SAFE = NO_SUID | NO_DEVICES

_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 0x2
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_CLONE, _CLOEXEC = 0x1, 0x80000
_FROM_DESCRIPTOR = 0x4
# What `statvfs` says of a mount, and the same for `mount`: a remount says all of it again, for in a
# user namespace nothing may be taken away that was there when it was entered.
_KEPT = ((0x1, 0x1), (0x2, 0x2), (0x4, 0x4), (0x8, 0x8),
         (0x400, 0x400), (0x800, 0x800), (0x1000, 0x200000))  # fmt: skip


class _Attributes(ctypes.Structure):
    """The kernel's `struct mount_attr`."""

    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    ]


def _call(what: str, name: str, *arguments: object) -> int:
    try:
        return _libc.syscall(name, *arguments)
    except OSError as error:
        number = error.errno or 0
        raise OSError(number, f"{what}: {os.strerror(number)}") from None


def mount(
    target: str,
    kind: str | None = None,
    flags: int = 0,
    options: str = "",
    source: str | None = None,
) -> None:
    """Mount a new file system of a kind on `target`, or do what `flags` says to the one there."""
    _call(
        f"mount({kind or source or hex(flags)} on {target})",
        "mount",
        os.fsencode(source or kind or "none"),
        os.fsencode(target),
        kind.encode() if kind else None,
        flags,
        options.encode() if options else None,
    )


def unmount(target: str) -> None:
    """Take away what is mounted on `target`, with all below it, also while somebody uses it."""
    _call(f"umount({target})", "umount2", os.fsencode(target), _DETACH)


def make_private() -> None:
    """Let no mount of ours be seen outside of this mount namespace, and none from there here."""
    mount("/", flags=_PRIVATE | _RECURSIVE)


def make_read_only(target: str, attributes: int = NO_SUID) -> None:
    """Make the mount on `target` read-only, for this mount namespace."""
    _remount(target, attributes | READ_ONLY)


def pivot(new_root: str) -> None:
    """Make the mount on `new_root` our root, and let go of everything else."""
    os.chdir(new_root)
    # The old root comes to lie on the new one, from where it is taken away.
    _call(f"pivot_root({new_root})", "pivot_root", b".", b".")
    unmount(".")
    os.chdir("/")


# Trees: mounts that are nowhere yet


def tree(source: str | int, attributes: int, recursive: bool = True) -> int:
    """A copy of what is mounted at `source`, a path or an open descriptor, as a descriptor.

    It and all mounts below it have `attributes` from the start. `attach` puts it somewhere; when
    the last descriptor is closed before that, it is gone. Raises `OSError`, with ENOSYS on
    Linux before 5.12.
    """
    flags = _CLONE | _CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    if isinstance(source, int):
        place, path, flags = source, b"", flags | _AT_EMPTY_PATH
    else:
        place, path = _AT_FDCWD, os.fsencode(source)
    descriptor = _call(f"open_tree({source})", "open_tree", place, path, flags)
    try:
        set_attributes(descriptor, attributes, recursive)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def set_attributes(descriptor: int, attributes: int, recursive: bool = True) -> None:
    """Add attributes to a mount that `descriptor` is the root of."""
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    change = _Attributes(attributes, 0, 0, 0)
    size = ctypes.sizeof(change)
    _call("mount_setattr", "mount_setattr", descriptor, b"", flags, ctypes.byref(change), size)


def attach(descriptor: int, target: str) -> None:
    """Put a tree, or a detached mount from elsewhere, on `target`; the descriptor stays open."""
    path = os.fsencode(target)
    arguments = (descriptor, b"", _AT_FDCWD, path, _FROM_DESCRIPTOR)
    _call(f"move_mount(to {target})", "move_mount", *arguments)


def has_trees() -> bool:
    """Whether this kernel has the calls behind `tree` (Linux 5.12 and newer)."""
    try:
        set_attributes(-1, 0)
    except OSError as error:
        # Docker's older profiles answer EPERM for what they don't know.
        return error.errno not in (errno.ENOSYS, errno.EPERM)
    return True


# Binds


def bind(source: str, target: str, attributes: int, trees: bool) -> None:
    """Show `source`, with all that is mounted below it, at `target`, which exists already.

    With `trees` (see `has_trees`) nothing is ever there without its attributes; else it is there
    for a moment, so that nobody else may be in this mount namespace.
    """
    if trees:
        descriptor = tree(source, attributes)
        try:
            attach(descriptor, target)
        finally:
            os.close(descriptor)
        return
    mount(target, flags=_BIND | _RECURSIVE, source=source)
    for one in _below(target):
        _remount(one, attributes)


def cover(source: str, target: str) -> None:
    """Show the file `source` at `target`, as it is."""
    mount(target, flags=_BIND, source=source)


def _remount(target: str, attributes: int) -> None:
    said = os.statvfs(target).f_flag
    kept = sum(flag for bit, flag in _KEPT if said & bit)
    mount(target, flags=_REMOUNT | _BIND | kept | attributes)


def _below(target: str) -> Iterator[str]:
    top = os.path.realpath(target)
    for one in table():
        if one.target == top or one.target.startswith(top.rstrip("/") + "/"):
            yield one.target


# What is mounted


@dataclass(frozen=True)
class Mount:
    """A line of `/proc/self/mountinfo`: what is shown where, as which kind of file system."""

    root: str
    target: str
    kind: str
    options: tuple[str, ...]


def table(text: str | None = None) -> list[Mount]:
    """What is mounted in our mount namespace, covered or not; `text` for another's mountinfo."""
    if text is None:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    return [_parsed(line) for line in text.splitlines()]


def _parsed(line: str) -> Mount:
    left, _, right = line.partition(" - ")
    fields, kind = left.split(" "), right.split(" ")
    root, target = _unescaped(fields[3]), _unescaped(fields[4])
    return Mount(root, target, kind[0], tuple(kind[2].split(",")))


def _unescaped(name: str) -> str:
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        name = name.replace(escape, char)
    return name


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the block's end."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
