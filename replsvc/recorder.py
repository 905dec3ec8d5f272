"""From a cell's outputs to its log and its model view: redacted, counted, bounded, durable.

One `Recorder` a call. Every output becomes an event before anyone sees it; the model view grows
alongside in bounded memory. Past `max_log_bytes` bytes are counted and no longer kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from replsvc.call_log import CallLog
from replsvc.calls import Content, Draft, ErrorInfo, ImageContent, Keep, OutputInfo, TextContent
from replsvc.config import Limits
from replsvc.output import Page, clean_traceback, inline
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

MAX_INLINE_CHARS = 1024 * 1024
"""A value's part that is longer is not in the call itself."""
# Decoding takes memory: one call's images after another's.
DARKROOM = trio.CapacityLimiter(1)


class Recorder:
    """See the module."""

    def __init__(
        self,
        log: CallLog,
        call_id: str,
        limits: Limits,
        redactor: Redactor,
        where: str,
        keep: Keep = "middle",
    ) -> None:
        self._log, self._call_id = log, call_id
        self._limits, self._redactor, self._where = limits, redactor, where
        self.page = Page(limits.max_output_bytes, limits.max_output_lines, keep)
        self._rest: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        self._logged = self._dropped = self._lines = 0
        self._mid_line = False

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
                self.page.show(bundle, output.display_id, update=output.update)
            case ExecuteResult():
                bundle = self._clean(output.data)
                self._rich(
                    "execute_result",
                    bundle,
                    metadata=self._clean(output.metadata),
                    execution_count=output.execution_count,
                )
                self.page.set_value(bundle)
            case ClearOutput():
                self._append({"type": "clear_output", "wait": output.wait})
                self.page.clear(wait=output.wait)
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
        self.page.write(name, data)
        self._lines += data.count(b"\n")
        self._mid_line = not data.endswith(b"\n")
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

    async def finish(self) -> OutputInfo:
        """Take in what was held back, and give the output as the model sees it."""
        for name, rest in self._rest.items():
            held = rest + (self._redactor.flush(name) if self._redactor else b"")
            self._rest[name] = b""
            self._put(name, held)
        max_px = self._limits.max_image_px
        if self.page.is_slow(max_px):
            await trio.to_thread.run_sync(self.page.develop, max_px, limiter=DARKROOM)
        else:
            self.page.develop(max_px)
        view = self.page.render(self._where)
        total = self._logged + self._dropped
        return OutputInfo(
            text=view.text,
            truncated=view.truncated or self._dropped > 0,
            total_bytes=total,
            total_lines=self._lines + self._mid_line,
            dropped_bytes=self._dropped,
            artifact=f"{self._call_id}.log" if total else None,
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
        images = (ImageContent(mime_type=p.mime_type, data=p.data) for p in self.page.pictures)
        return (*([TextContent(text=text)] if text else []), *images)

    @property
    def image_px(self) -> int:
        """Pixels of all images together."""
        return sum(picture.pixels for picture in self.page.pictures)

    def result(self) -> tuple[Mimebundle | None, dict[str, int]]:
        """The value's mimebundle, and the size of each part that is too large to go along.

        What was left out is whole in the log's `execute_result` event.
        """
        value = self.page.value
        return (None, {}) if value is None else inline(value, MAX_INLINE_CHARS)
