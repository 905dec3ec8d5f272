"""What ended cells still write and display: into the log, as output of their cell, and bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from replsvc.calls import Draft
from replsvc.output.mime import part_size
from replsvc.redaction import Redactor
from replsvc.store.log import EventLog
from replsvc_kernels.kernel import LastingKernel
from replsvc_kernels.messages import BackgroundOutput, DisplayData, Stream

if TYPE_CHECKING:
    from replsvc_kernels.kernel import Kernel

# Cells that are remembered; a session has fewer pipes than that at a time.
MAX_CELLS = 256
# What was left out is said first at this many bytes, and then whenever it has doubled.
FIRST_TOLD_BYTES = 64 * 1024
# What a display counts for besides its data: so that even empty ones come to an end.
DISPLAY_BYTES = 256


class _Cell:
    """How much of one cell was kept, and left out."""

    def __init__(self) -> None:
        self.kept = self._dropped = 0
        self._tell_at = FIRST_TOLD_BYTES

    def drop(self, size: int) -> dict[str, int]:
        """So much is not kept; what is to be said of it now, if anything."""
        self._dropped += size
        if self._dropped < self._tell_at:
            return {}
        while self._tell_at <= self._dropped:
            self._tell_at *= 2
        return {"dropped_bytes": self._dropped}


class BackgroundLog:
    """One session's. `most_bytes` is what one cell may have in the log after its end."""

    def __init__(self, session_id: str, log: EventLog, redactor: Redactor, most_bytes: int) -> None:
        self._session_id, self._log, self._redactor = session_id, log, redactor
        self._most_bytes = most_bytes
        self._cells: OrderedDict[str, _Cell] = OrderedDict()

    async def run(self, kernel: Kernel) -> None:
        """Keep what comes until the kernel ends. Not reading is back-pressure: its writers wait."""
        async for output in kernel.background:
            for draft in self._drafts(output):
                pending = self._log.append(self._session_id, [draft])
                await self._log.room(self._session_id)
                if isinstance(kernel, LastingKernel):
                    await pending.wait()
                    kernel.keep(output.cell)

    def _drafts(self, output: BackgroundOutput) -> list[Draft]:
        cell = self._cells.pop(output.cell, None) or _Cell()
        self._cells[output.cell] = cell
        if len(self._cells) > MAX_CELLS:
            self._cells.popitem(last=False)
        if isinstance(output, Stream):
            return self._written(output, cell)
        return self._shown(output, cell)

    def _written(self, stream: Stream, cell: _Cell) -> list[Draft]:
        key = f"{stream.cell}/{stream.name}"
        data = self._redactor.feed(key, stream.data) if self._redactor else stream.data
        place: dict[str, int] = {}
        if stream.upto is not None:
            place["upto"] = stream.upto - self._redactor.held(key)
        kept = data[: max(0, self._most_bytes - cell.kept)]
        cell.kept += len(kept)
        told = cell.drop(len(data) - len(kept))
        if not kept and not told:
            return []
        said = {"type": "stream", "name": stream.name, **place, **told}
        return [_draft(stream.cell, said, kept)]

    def _shown(self, output: DisplayData, cell: _Cell) -> list[Draft]:
        said = {"type": "update_display_data" if output.update else "display_data"}
        size = sum(map(part_size, output.data.values())) + DISPLAY_BYTES
        if size > self._most_bytes - cell.kept:
            told = cell.drop(size)
            return [_draft(output.cell, {**said, "data": {}, **told})] if told else []
        cell.kept += size
        shown = {"data": dict(output.data), "metadata": dict(output.metadata)}
        clean = self._redactor.json(shown) if self._redactor else shown
        return [_draft(output.cell, {**said, **clean, "display_id": output.display_id})]


def _draft(cell: str, data: dict[str, Any], blob: bytes | None = None) -> Draft:
    return Draft(kind="output", call_id=cell, data={**data, "background": True}, blob=blob)
