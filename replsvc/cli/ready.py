"""The ready file: says to scripts and supervisors where the service is, while it is there."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import TextIO

from replsvc.errors import InvalidInputError


class ReadyFile:
    """Use as a context manager: one that is left of an earlier run goes at once, ours at the end.

    `path` None writes nothing. Raises `InvalidInputError` when no file can be written there, before
    anything has started.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # Kept open, so that no other file can get its number meanwhile.
        self._ours: TextIO | None = None

    def __enter__(self) -> ReadyFile:
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
                draft, file = self._draft()
                file.close()
                draft.unlink()
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
        draft, self._ours = self._draft()
        try:
            print(json.dumps({"url": url, "key": key}), file=self._ours, flush=True)
            draft.replace(self._path)
        except OSError:
            draft.unlink()
            raise

    def remove(self) -> None:
        """Remove the file, unless somebody has put another in its place."""
        if self._path is None or self._ours is None:
            return
        with contextlib.suppress(OSError), self._ours:
            if os.path.samestat(self._path.lstat(), os.fstat(self._ours.fileno())):
                self._path.unlink()
        self._ours = None

    def _draft(self) -> tuple[Path, TextIO]:
        assert self._path is not None
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return draft, os.fdopen(os.open(draft, flags, 0o600), "w")
