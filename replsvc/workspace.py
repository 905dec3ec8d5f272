"""A session's workspace: the directory that is its cwd, HOME and TMPDIR, made before its kernel."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from replsvc.errors import InvalidInputError, StorageError
from replsvc.session_values import Mount, SessionRequest


def make(path: Path, request: SessionRequest, mounts: tuple[Mount, ...] = ()) -> None:
    """Make `path` anew with the request's files and mounts in it.

    Nothing of a session runs meanwhile, so nobody can swap a name beneath us. Raises
    `InvalidInputError` for a file that can't be put there, `StorageError` when the disk refuses.
    """
    try:
        shutil.rmtree(path, ignore_errors=True)
        # The session's user passes through it; the workspace itself is for that user alone.
        path.parent.mkdir(mode=0o711, exist_ok=True)
        path.mkdir(mode=0o700)
        for mount in mounts:
            _mount(path, mount)
        for name, content in request.files.items():
            _write(path, name, content.content())
    except InvalidInputError:
        _unmake(path)
        raise
    except OSError as error:
        _unmake(path)
        raise StorageError(
            f"the session's workspace can't be made: {error.strerror} ({error.filename}).",
            hint="Look at the disk's space and permissions.",
        ) from error


def _unmake(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path)
    with contextlib.suppress(OSError):
        path.parent.rmdir()  # unless a kernel has something beside it


def _write(root: Path, name: str, content: bytes) -> None:
    target = root / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=0o600
        )
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidInputError(
            f"files: {name!r} can't be put beside the other files: {error.strerror}.",
            hint="Give each path once, and no path below a file.",
        ) from None
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(content)


def source_of(mount: Mount) -> Path:
    """The absolute path of what a mount shows."""
    return Path(mount.source).expanduser().absolute()


def check_mount(mount: Mount) -> Path:
    """The mount's source, which is there; raises `InvalidInputError` if not."""
    source = source_of(mount)
    if not source.exists():
        raise InvalidInputError(f"mount: there is no {source}.", hint="Give a path that exists.")
    return source


def _mount(root: Path, mount: Mount) -> None:
    source = check_mount(mount)
    target = root / mount.target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without isolation there is no mount namespace: a link shows it, and nothing can keep a
    # kernel that runs as ourselves from writing through it.
    target.symlink_to(source, target_is_directory=source.is_dir())
