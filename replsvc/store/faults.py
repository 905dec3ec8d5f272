"""What went wrong with the disk or the database, said so that an operator knows what to do."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from replsvc.errors import ReplsvcError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

_FULL = "Free space there; the log goes on by itself."
_REFUSED = "Make it writable for uid {uid}, or choose another data directory."
_DAMAGED = (
    "Stop the service and restore replsvc.db from a backup; "
    "moved away, together with its -wal and -shm files, it starts empty."
)
_BUSY = "End the other program that has replsvc.db open."
_FAULTY = "Check the disk, and that there is space on it; the log goes on by itself."

_BY_SQLITE = {
    "FULL": _FULL,
    "READONLY": _REFUSED,
    "CANTOPEN": _REFUSED,
    "PERM": _REFUSED,
    "CORRUPT": _DAMAGED,
    "NOTADB": _DAMAGED,
    "BUSY": _BUSY,
    "LOCKED": _BUSY,
    "IOERR": _FAULTY,
}
_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _REFUSED,
    errno.EACCES: _REFUSED,
    errno.EPERM: _REFUSED,
    errno.EEXIST: "Choose a path that is a directory, or none yet.",
    errno.ENOTDIR: "Choose a path that is a directory, or none yet.",
    errno.EIO: _FAULTY,
}


def storage_error(error: Exception, doing: str, directory: Path) -> ReplsvcError:
    """`error` as the `StorageError` to raise for it; one of ours is returned as it is.

    `doing` ends "The event log in DIRECTORY can't be ...".
    """
    if isinstance(error, ReplsvcError):
        return error
    cause = getattr(error, "orig", None) or error
    name = getattr(cause, "sqlite_errorname", "")
    if isinstance(cause, OSError):
        reason, hint = cause.strerror or str(cause), _BY_ERRNO.get(cause.errno or 0, "")
    else:
        kind = name.removeprefix("SQLITE_").split("_")[0]
        reason, hint = str(cause) or type(cause).__name__, _BY_SQLITE.get(kind, "")
    fault = StorageError(
        f"The event log in {directory} can't be {doing}: {reason}.",
        hint=hint.format(uid=os.geteuid()),
        details={"sqlite": name} if name else {},
    )
    fault.__cause__ = cause
    return fault
