"""A session's workspace: the directory that is its cwd, HOME and TMPDIR, made before its kernel."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from replsvc.errors import InvalidInputError, StorageError
from replsvc.session_values import Mount, SessionRequest
from replsvc_kernels.workspaces import Workspace


def fill(place: Workspace, request: SessionRequest, mounts: tuple[Mount, ...]) -> None:
    """Put the request's files, and links to mounts, into an empty workspace.

    Nothing of a session runs meanwhile, so nobody can swap a name beneath us. Raises
    `InvalidInputError` for a file that can't be put there, `StorageError` when the disk refuses.
    """
    contents = {name: file.content() for name, file in request.files.items()}
    total, size = sum(map(len, contents.values())), place.size_bytes
    if size is not None and total > size:
        raise _too_large(total, size)
    try:
        for mount in mounts:
            _mount(place.path, mount)
        for name, content in contents.items():
            _write(place.path, name, content)
    except OSError as error:
        if place.hard and size is not None and error.errno == errno.ENOSPC:
            raise _too_large(total, size) from None
        raise can_not_be_made(error) from error


def _too_large(total: int, size_bytes: int) -> InvalidInputError:
    return InvalidInputError(
        f"files: {total} bytes do not fit into the session's workspace of {size_bytes}.",
        hint="Give less, or have the operator raise limits.workspace_bytes.",
    )


def can_not_be_made(error: OSError) -> StorageError:
    """What to say of a workspace that the system refused."""
    where = f" ({error.filename})" if error.filename else ""
    return StorageError(
        f"the session's workspace can't be made: {error.strerror}{where}.",
        hint="Look at the disk's space and permissions.",
    )


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


def check_apart(source: Path, private: Iterable[Path]) -> None:
    """Raise `InvalidInputError` for a mount that shows what is the service's own, or lies in it."""
    real = source.resolve()
    for path in private:
        own = path.resolve()
        if real.is_relative_to(own) or own.is_relative_to(real):
            raise InvalidInputError(
                f"mount: {source} would show the service's own directory {path}.",
                hint="Mount a directory beside it, or keep the data directory elsewhere.",
            )


def _mount(root: Path, mount: Mount) -> None:
    source = check_mount(mount)
    target = root / mount.target
    target.parent.mkdir(parents=True, exist_ok=True)
    # Without isolation there is no mount namespace: a link shows it, and nothing can keep a
    # kernel that runs as ourselves from writing through it.
    target.symlink_to(source, target_is_directory=source.is_dir())
