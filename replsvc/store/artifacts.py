"""Files that cells made, kept beside the event log: a directory a session, a file an artefact."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

_CHUNK = 1024 * 1024
# Where the system can't copy between these two files by itself.
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class ArtifactFiles:
    """All methods block: call them in threads. Session ids and names are plain file names."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "artifacts"

    def keep(self, session_id: str, name: str, source: int, size_limit: int) -> int | None:
        """Copy what the descriptor `source` reads; returns its size, None for more than the limit.

        Raises `OSError`; then, and for a file that is too large, nothing of it is left.
        """
        if os.fstat(source).st_size > size_limit:
            return None
        target = self._place(session_id, name)
        descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        size: int | None = None
        try:
            size = _copy(source, descriptor, size_limit)
        finally:
            os.close(descriptor)
            if size is None:
                with suppress(OSError):
                    target.unlink()
        return size

    def keep_bytes(self, session_id: str, name: str, content: bytes) -> None:
        """Keep `content`. Raises `OSError`; then nothing of it is left."""
        target = self._place(session_id, name)
        try:
            target.write_bytes(content)
        except OSError:
            with suppress(OSError):
                target.unlink()
            raise

    def _place(self, session_id: str, name: str) -> Path:
        folder = self._directory / session_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / name

    def path(self, session_id: str, name: str) -> Path:
        """Where an artefact is. Raises `FileNotFoundError` for one that is not kept."""
        path = self._directory / session_id / name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path

    def remove(self, session_id: str) -> None:
        """Remove all that is kept of a session."""
        shutil.rmtree(self._directory / session_id, ignore_errors=True)


def _copy(source: int, target: int, limit: int) -> int | None:
    """Copy to the end, however the file grows meanwhile; None once it is over the limit."""
    size = 0
    while True:
        try:
            count = os.copy_file_range(source, target, min(_CHUNK, limit + 1 - size))
        except OSError as error:
            if size or error.errno not in _NOT_HERE:
                raise
            return _copy_bytes(source, target, limit)
        if not count:
            return size
        size += count
        if size > limit:
            return None


def _copy_bytes(source: int, target: int, limit: int) -> int | None:
    size = 0
    while chunk := os.read(source, min(_CHUNK, limit + 1 - size)):
        size += len(chunk)
        if size > limit:
            return None
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
    return size
