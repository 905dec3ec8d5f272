"""Artefacts of a session: files that its cells create or change, kept beyond its workspace.

An artefact's id is `CALL.N`; beside them `CALL.log` is what the call printed. What an id stands for
is said in the call's result, and so it needs no table of its own.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from replsvc.calls import Artifact
from replsvc.changes import Notices, Workspace, open_file
from replsvc.config import Limits
from replsvc.output.oversized import Oversized
from replsvc.redaction import Redactor
from replsvc.store.artifacts import ArtifactFiles

# A walk over more entries than this would hold up other sessions.
FEW = 100
UNKNOWN_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Made:
    """The files of one call that its result lists, and whether they are all that it made."""

    artifacts: tuple[Artifact, ...] = ()
    complete: bool = True


NO_FILES = Made()


class Artifacts:
    """One session's. Its methods do not overlap: one cell runs at a time."""

    def __init__(
        self,
        session_id: str,
        root: Path,
        notices: Notices,
        files: ArtifactFiles,
        limits: Limits,
        redactor: Redactor,
    ) -> None:
        self._session_id, self._root, self._files = session_id, root, files
        self._limits, self._redactor = limits, redactor
        self._workspace = Workspace(root, notices)
        self._looked = False

    def close(self) -> None:
        """The workspace is about to be removed, or replaced by an empty one."""
        self._workspace.forget()
        self._looked = False

    async def begin(self) -> None:
        """A cell is about to run. What is there before the first one is no cell's.

        Later, what background processes of earlier cells write belongs to the next result.
        """
        if not self._looked and self._limits.max_artifacts:
            self._looked = True
            if not self._workspace.prime(FEW):
                await trio.to_thread.run_sync(self._workspace.prime)

    async def collect(self, call_id: str) -> Made:
        """What has changed since the last look, copied. Without changes that costs next to nothing.

        A file that can't be read, or for which there is no room, is listed and not kept.
        """
        if not self._looked or self._workspace.unchanged():
            return NO_FILES
        return await trio.to_thread.run_sync(self._collect, call_id)

    async def keep_outputs(self, call_id: str, made: Made, parts: Sequence[Oversized]) -> Made:
        """Keep what a result can't hold, beside the files that the call made."""
        return await trio.to_thread.run_sync(self._keep_outputs, call_id, made, parts)

    def _keep_outputs(self, call_id: str, made: Made, parts: Sequence[Oversized]) -> Made:
        room = self._limits.max_artifact_bytes - sum(a.size for a in made.artifacts if a.kept)
        artifacts = list(made.artifacts)
        complete = made.complete
        for part in parts:
            if len(artifacts) >= self._limits.max_artifacts:
                complete = False
                break
            name = f"{call_id}.{len(artifacts)}"
            content = part.content()
            kept = len(content) <= room and self._keep_bytes(name, content)
            room -= len(content) if kept else 0
            ending = mimetypes.guess_extension(part.mime_type) or ".bin"
            artifacts.append(
                Artifact(
                    id=name,
                    path=f"output-{len(artifacts)}{ending}",
                    size=len(content),
                    mime_type=part.mime_type,
                    kept=kept,
                    source="output",
                )
            )
        return Made(tuple(artifacts), complete)

    def _keep_bytes(self, name: str, content: bytes) -> bool:
        try:
            self._files.keep_bytes(self._session_id, name, content)
        except OSError:
            return False
        return True

    def _collect(self, call_id: str) -> Made:
        changed = self._workspace.look()
        listed = changed.files[: self._limits.max_artifacts]
        room = self._limits.max_artifact_bytes
        artifacts = []
        for number, (path, size) in enumerate(listed):
            name = f"{call_id}.{number}"
            kept = self._keep(path, name, room)
            if kept is not None:
                room -= kept
            shown = os.fsencode(path).decode("utf-8", "backslashreplace")
            artifacts.append(
                Artifact(
                    id=name,
                    path=self._redactor.text(shown) if self._redactor else shown,
                    size=size if kept is None else kept,
                    mime_type=mimetypes.guess_type(path)[0] or UNKNOWN_TYPE,
                    kept=kept is not None,
                )
            )
        complete = len(listed) == len(changed.files) and not changed.more
        return Made(tuple(artifacts), complete)

    def _keep(self, path: str, name: str, room: int) -> int | None:
        try:
            source = open_file(self._root, path)
        except OSError:
            return None
        try:
            return self._files.keep(self._session_id, name, source, room)
        except OSError:
            return None  # the disk's trouble: the event log, on the same disk, says it
        finally:
            os.close(source)
