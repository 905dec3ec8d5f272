"""Removing what a session left: however deep, whatever its modes, whoever of our sessions owns it.

Used by the coordinator. As an ordinary user whose sessions have ids of their own, a process does it
that has the rights of those ids.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
import sys

from . import namespaces

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_START = (
    "import sys; sys.path.append(sys.argv[1])\n"
    "from sandbox import removal\n"
    "removal.main(sys.argv[2])"
)


def remove(path: str, timeout_s: float = 600.0) -> None:
    """Remove a directory and all below it; one that is not there is no error.

    Nothing of a session may run in it meanwhile. Blocks: to be called in a thread. Raises `OSError`
    when something is left, `subprocess.SubprocessError` after `timeout_s`.
    """
    try:
        _remove(path)
    except PermissionError as error:
        if os.geteuid() == 0:
            raise
        directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        command = (sys.executable, "-I", "-S", "-c", _START, directory, path)
        done = subprocess.run(  # noqa: S603 - our own file
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise error from None


def discard(path: str) -> None:
    """`remove`, as far as it goes: what can't be removed stays."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        remove(path)


def main(path: str) -> None:
    """For `remove`: with all rights over our user's subordinate ids; status 1 if it can't."""
    try:
        namespaces.enter_user_namespace(namespaces.maps_from_subordinate_ids())
        _remove(path)
    except (OSError, LookupError) as error:
        sys.exit(str(error))


def _remove(path: str) -> None:
    """Goes on after an error as far as it gets, and raises the first one."""
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    except PermissionError:
        os.chmod(path, 0o700)  # a session may have taken its own rights away
        top = os.open(path, _DIRECTORY)
    errors: list[OSError] = []
    try:
        while _emptied_some(top, top, errors):
            pass
    finally:
        os.close(top)
    if errors:
        raise errors[0]
    os.rmdir(path)


def _emptied_some(place: int, top: int, errors: list[OSError]) -> bool:
    """Take out what is in the directory `place`; whether there was something that could be.

    Directories that are not empty come to lie in `top`, so that neither the depth of a tree nor the
    length of its paths matters: descriptors and stack are the same for all.
    """
    some = False
    with contextlib.suppress(PermissionError):
        os.fchmod(place, 0o700)
    with os.scandir(place) as entries:
        for entry in entries:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=place)
                elif not _removed_empty(entry.name, place):
                    with contextlib.suppress(PermissionError):
                        # Both to open and to move it are rights to it.
                        os.chmod(entry.name, 0o700, dir_fd=place)
                    if place == top:
                        if not _flattened_some(entry.name, top, errors):
                            continue
                    else:
                        os.rename(
                            entry.name, secrets.token_hex(8), src_dir_fd=place, dst_dir_fd=top
                        )
                some = True
            except OSError as error:
                errors[:] = errors or [error]
    return some


def _removed_empty(name: str, place: int) -> bool:
    try:
        os.rmdir(name, dir_fd=place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _flattened_some(name: str, top: int, errors: list[OSError]) -> bool:
    """Move the directories in one that lies in `top` up there, and remove it."""
    some = False
    place = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        while _emptied_some(place, top, errors):
            some = True
    finally:
        os.close(place)
    return _removed_empty(name, top) or some
