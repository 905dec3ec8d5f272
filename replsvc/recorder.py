"""From a cell's outputs to its log and its model view: redacted, counted, bounded, durable.

One `Recorder` a call. Every output becomes an event before anyone sees it; the model view grows
alongside in bounded memory. Past `max_log_bytes` bytes are counted and no longer kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replsvc.call_log import CallLog
from replsvc.calls import Content, Draft, ErrorInfo, ImageContent, OutputInfo, TextContent
from replsvc.config import Limits
from replsvc.output import ModelView, clean_traceback, mime_image, mime_text
from replsvc.output.terminal import held_utf8
from replsvc.redaction import Redactor
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Failure,
    Mimebundle,
    Output,
    Stream,
    StreamName,
)


class Recorder:
    """See the module."""

    def __init__(
        self,
        log: CallLog,
        call_id: str,
        limits: Limits,
        redactor: Redactor,
        where: str,
    ) -> None:
        self._log, self._call_id = log, call_id
        self._limits, self._redactor, self._where = limits, redactor, where
        self._view = ModelView(limits.max_output_bytes, limits.max_output_lines)
        self._rest: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        self._logged = self._dropped = 0
        self.images: list[ImageContent] = []
        self.result: Mimebundle | None = None

    async def output(self, output: Output) -> None:
        """Record one output; returns when it is in the log's batch and there is room for more."""
        match output:
            case Stream():
                data = output.data
                if self._redactor:
                    data = self._redactor.feed(output.name, data)
                self._stream(output.name, data)
            case DisplayData():
                bundle = self._clean(output.data)
                self._rich(
                    "update_display_data" if output.update else "display_data",
                    bundle,
                    metadata=self._clean(output.metadata),
                    display_id=output.display_id,
                )
                self._show(bundle)
            case ExecuteResult():
                bundle = self._clean(output.data)
                self._rich(
                    "execute_result",
                    bundle,
                    metadata=self._clean(output.metadata),
                    execution_count=output.execution_count,
                )
                self.result = bundle
                self._picture(bundle)
            case ClearOutput():
                self._append({"type": "clear_output", "wait": output.wait})
        await self._log.room()

    def _clean(self, value: Mapping[str, Any]) -> dict[str, Any]:
        clean: dict[str, Any] = self._redactor.json(dict(value)) if self._redactor else dict(value)
        return clean

    def _stream(self, name: StreamName, data: bytes) -> None:
        data = self._rest[name] + data
        cut = len(data) - held_utf8(data)
        self._rest[name] = data[cut:]
        self._put(name, data[:cut])

    def _put(self, name: StreamName, data: bytes) -> None:
        if not data:
            return
        self._view.feed(name, data)
        room = self._limits.max_log_bytes - self._logged
        kept = data[: max(0, room)]
        self._dropped += len(data) - len(kept)
        self._logged += len(kept)
        if kept:
            self._append({"type": "stream", "name": name}, kept)

    def _append(self, data: dict[str, Any], blob: bytes | None = None) -> None:
        draft = Draft.model_construct(kind="output", call_id=self._call_id, data=data, blob=blob)
        self._log.add(draft)

    def _rich(self, type_: str, bundle: Mimebundle, **more: Any) -> None:
        self._append({"type": type_, "data": bundle, **more})

    def _show(self, bundle: Mimebundle) -> None:
        if not self._picture(bundle) and (text := mime_text(bundle)) is not None:
            self._view.feed("stdout", text.encode("utf-8", "backslashreplace") + b"\n")

    def _picture(self, bundle: Mimebundle) -> bool:
        image = mime_image(bundle)
        if image is not None:
            self.images.append(ImageContent(mime_type=image[0], data=image[1]))
        return image is not None

    def finish(self) -> OutputInfo:
        """Take in what was held back, and give the output as the model sees it."""
        for name, rest in self._rest.items():
            held = rest + (self._redactor.flush(name) if self._redactor else b"")
            self._rest[name] = b""
            self._put(name, held)
        view = self._view.render(self._where)
        return OutputInfo(
            text=view.text,
            truncated=view.truncated or self._dropped > 0,
            total_bytes=view.total_bytes,
            total_lines=view.total_lines,
            dropped_bytes=self._dropped,
            artifact=f"{self._call_id}.log" if view.total_bytes else None,
        )

    def error(self, failure: Failure, *, has_guest: bool) -> ErrorInfo:
        """The exception of the user's code, redacted; our guest has made it fit for a model."""
        if has_guest:
            lines = tuple(line for entry in failure.traceback for line in entry.split("\n"))
        else:
            lines = clean_traceback(failure.traceback, failure.ename, failure.evalue)
        text = self._redactor.text if self._redactor else str
        return ErrorInfo(
            ename=text(failure.ename),
            evalue=text(failure.evalue),
            traceback=tuple(text(line) for line in lines),
        )

    def content(self, text: str) -> tuple[Content, ...]:
        """Text first, where there is any, then each image."""
        return (*([TextContent(text=text)] if text else []), *self.images)
