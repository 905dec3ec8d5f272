"""The ready file: says to scripts and supervisors where the service is, while it is there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from types import TracebackType

from replsvc.errors import InvalidInputError


class ReadyFile:
    """Use as a context manager: one that is left of an earlier run goes at once, ours at the end.

    `path` None writes nothing. Raises `InvalidInputError` when no file can be written there, before
    anything has started.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._ours: os.stat_result | None = None

    def __enter__(self) -> ReadyFile:
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
                self._draft("").unlink()
            except OSError as error:
                raise InvalidInputError(
                    f"--ready-file: {self._path} can't be written: {error.strerror}.",
                    hint="Give a path in a directory that you can write to.",
                ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def write(self, url: str, key: str | None) -> None:
        """Say it; whoever sees the file sees all of it. Raises `OSError`."""
        if self._path is None:
            return
        draft = self._draft(json.dumps({"url": url, "key": key}) + "\n")
        self._ours = draft.stat()
        draft.replace(self._path)

    def remove(self) -> None:
        """Remove the file, unless somebody has put another in its place."""
        if self._path is None or self._ours is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(self._path.lstat(), self._ours):
                self._path.unlink()
        self._ours = None

    def _draft(self, text: str) -> Path:
        assert self._path is not None
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(draft, flags, 0o600), "w") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
        return draft
