"""Paths that an agent names, held to a directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def inside(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """The real, absolute path that `path` leads to, which is `root` or beneath it.

    `path` may be relative to `root` or absolute, and need not exist; `..` and symbolic links are
    followed as the system would. Raises `ValueError` where it leads out of `root`, also by a link
    in its middle or at its end, for NUL characters and for links that lead in a circle.

    This says where the path leads now. Where somebody else can write to `root`, as a session's code
    to its workspace, they may put a link there before you open the file: then open each part with
    `O_NOFOLLOW`, relative to the directory before it, or let the kernel do what is to be done with
    the file. A hard link is no link here: it is the file.
    """
    named = os.fspath(path)
    base = Path(_real(os.fspath(root), named))
    found = Path(_real(os.path.join(base, named), named))  # noqa: PTH118 - `..` after a link stays
    if not found.is_relative_to(base):
        raise ValueError(f"{named!r} leads out of {base}")
    return found


def _real(path: str, named: str) -> str:
    if "\0" in path:
        raise ValueError(f"{named!r} has a NUL character in it")
    try:
        # strict, to notice what can't be followed; what is only not there yet is no fault
        return os.path.realpath(path, strict=True)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EACCES, errno.ENAMETOOLONG):
            raise ValueError(f"{named!r} can't be followed: {error.strerror}") from None
        return os.path.realpath(path)
