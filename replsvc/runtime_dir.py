"""A coordinator's private directory: sockets, and what it keeps only while it runs.

It is held by a lock, so that the next coordinator can tell what a killed one left, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replsvc.errors import StorageError
from replsvc_kernels.sandbox import removal

PREFIX = "replsvc-"
LOCK = "lock"


@contextmanager
def runtime_dir(parent: Path | None = None) -> Iterator[Path]:
    """A fresh 0700 directory in `parent` (None: the system's for temporary files), until the end.

    Also removes those that coordinators of this user left when they were killed. Raises
    `StorageError` when none can be made. Blocks: call it in a worker thread.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    remove_stale(place)
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(
            f"no private directory can be made in {place}: {error.strerror}.",
            hint="Look at the disk's space and permissions, or set TMPDIR.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
    finally:
        # Workspaces may be in it, with what sessions made of them.
        removal.discard(str(path))
        os.close(handle)


def remove_stale(place: Path) -> None:
    """Remove this user's runtime directories in `place` whose coordinator is gone."""
    for path in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            handle = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # One that is made this moment has no lock file, or holds it already.
                removal.discard(str(path))
            finally:
                os.close(handle)
