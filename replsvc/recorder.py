"""From a cell's outputs to its log and its model view: redacted, counted, bounded, durable.

One `Recorder` a call. Every output becomes an event before anyone sees it; the model view grows
alongside in bounded memory. Past `max_log_bytes` bytes are counted and no longer kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from replsvc.call_log import CallLog
from replsvc.calls import (
    Content,
    Draft,
    ErrorInfo,
    Event,
    ImageContent,
    Keep,
    OutputInfo,
    TextContent,
)
from replsvc.config import Limits
from replsvc.output import Page, clean_traceback, inline
from replsvc.output.mime import part_size
from replsvc.output.oversized import Oversized
from replsvc.output.terminal import held_utf8
from replsvc.redaction import Redactor
from replsvc_kernels.kernel import LastingKernel
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Failure,
    Kept,
    Mimebundle,
    Output,
    Stream,
    StreamName,
)

MAX_INLINE_CHARS = 1024 * 1024
"""A value's part that is longer is not in the call itself."""
# Of a kernel that may outlive us so much is held until it is durable, and so many displays.
KEPT_BYTES, MOST_UNKEPT = 1024 * 1024, 64
# What the log has no room for is told of in steps of so much.
TOLD_BYTES = 8 * 1024 * 1024
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
        self._logged = self._shown = self._cut = self._dropped = self._lines = 0
        self._mid_line = False
        self._read: dict[StreamName, int] = {}
        self._kept: dict[StreamName, int] = {}
        self._mark = self._unkept = self._untold = 0

    async def output(self, output: Output) -> None:
        """Record one output; returns when it is in the log's batch and there is room for more."""
        match output:
            case Stream():
                data = output.data
                if output.upto is not None:
                    self._read[output.name] = output.upto
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
                    **self._marked(output.mark),
                )
                self.page.show(bundle, output.display_id, update=output.update)
            case ExecuteResult():
                bundle = self._clean(output.data)
                self._rich(
                    "execute_result",
                    bundle,
                    metadata=self._clean(output.metadata),
                    execution_count=output.execution_count,
                    **self._marked(output.mark),
                )
                self.page.set_value(bundle)
            case ClearOutput():
                self._append(
                    {"type": "clear_output", "wait": output.wait, **self._marked(output.mark)}
                )
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
        room = self._limits.max_log_bytes - self._logged - self._shown
        kept = data[: max(0, room)]
        self._dropped += len(data) - len(kept)
        self._cut += len(data) - len(kept)
        self._logged += len(kept)
        if kept:
            self._append({"type": "stream", "name": name, **self._place(name)}, kept)
        elif name in self._read:
            # Else a kernel's host, after a loss, would count them again, and hold them until then.
            self._untold += len(data)
            if self._untold >= TOLD_BYTES:
                dropped = {"dropped": self._untold, **self._place(name)}
                self._append({"type": "stream", "name": name, **dropped}, b"")
                self._untold = 0

    # For kernels that may outlive us: how far the log goes

    def _place(self, name: StreamName) -> dict[str, int]:
        if name not in self._read:
            return {}
        held = len(self._rest[name]) + self._redactor.held(name)
        self._unkept += self._read[name] - held - self._kept.get(name, 0)
        self._kept[name] = self._read[name] - held
        return {"upto": self._kept[name]}

    def _marked(self, mark: int | None) -> dict[str, int]:
        if mark is None:
            return {}
        self._mark = mark
        self._unkept += KEPT_BYTES // MOST_UNKEPT
        return {"mark": mark}

    async def output_kept(self, output: Output, kernel: LastingKernel) -> None:
        """As `output`, and now and then wait until all is durable, and tell the kernel so."""
        await self.output(output)
        if self._unkept >= KEPT_BYTES:
            await self._log.settled()
            kernel.keep(self._call_id, Kept(dict(self._kept), self._mark))
            self._unkept = 0

    def recall(self, event: Event) -> None:
        """Take in an output of this call that an earlier coordinator has recorded."""
        data = event.data
        match data["type"]:
            case "stream" if not data.get("background"):
                blob = event.blob or b""
                if blob:
                    self.page.write(data["name"], blob)
                    self._mid_line = not blob.endswith(b"\n")
                self._lines += blob.count(b"\n")
                self._logged += len(blob)
                self._dropped += data.get("dropped", 0)
                self._cut += data.get("dropped", 0)
                if "upto" in data:
                    self._read[data["name"]] = self._kept[data["name"]] = data["upto"]
            case "display_data" | "update_display_data":
                update = data["type"] == "update_display_data"
                self.page.show(data["data"], data.get("display_id"), update=update)
            case "execute_result":
                self.page.set_value(data["data"])
            case "clear_output":
                self.page.clear(wait=data["wait"])
        self._shown += sum(map(part_size, data.get("data", {}).values()))
        self._dropped += sum(data.get("left_out", {}).values())
        self._mark = max(self._mark, data.get("mark", 0))

    def _append(self, data: dict[str, Any], blob: bytes | None = None) -> None:
        draft = Draft(kind="output", call_id=self._call_id, data=data, blob=blob)
        self._log.add(draft)

    def _rich(self, type_: str, bundle: Mimebundle, **more: Any) -> None:
        """What is shown counts against the log's bound like what is printed."""
        sizes = {mime_type: part_size(value) for mime_type, value in bundle.items()}
        size = sum(sizes.values())
        if size > self._limits.max_log_bytes - self._logged - self._shown:
            self._dropped += size
            self._append({"type": type_, "data": {}, "left_out": sizes, **more})
            return
        self._shown += size
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
        total = self._logged + self._cut
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

    def oversized(self) -> tuple[Oversized, ...]:
        """What neither the call nor its images hold, once finished: for artefacts of its own."""
        parts: list[tuple[str, Any]] = list(self.page.unshown)
        value = self.page.value or {}
        _, left_out = self.result()
        parts += [(name, value[name]) for name in left_out if (name, value[name]) not in parts]
        return tuple(Oversized(mime_type, data) for mime_type, data in parts)
