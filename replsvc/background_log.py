"""What processes of ended cells still write: into the log, as output of their cell, and bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from replsvc.calls import Draft
from replsvc.redaction import Redactor
from replsvc.store.log import EventLog
from replsvc_kernels.kernel import LastingKernel
from replsvc_kernels.messages import Stream

if TYPE_CHECKING:
    from replsvc_kernels.kernel import Kernel

# Cells that are remembered; a session has fewer pipes than that at a time.
MAX_CELLS = 256
# What was left out is said first at this many bytes, and then whenever it has doubled.
FIRST_TOLD_BYTES = 64 * 1024


class _Cell:
    """How much of one cell was kept, and left out."""

    def __init__(self) -> None:
        self.kept = self.dropped = 0
        self.tell_at = FIRST_TOLD_BYTES


class BackgroundLog:
    """One session's. `most_bytes` is what one cell may have in the log after its end."""

    def __init__(self, session_id: str, log: EventLog, redactor: Redactor, most_bytes: int) -> None:
        self._session_id, self._log, self._redactor = session_id, log, redactor
        self._most_bytes = most_bytes
        self._cells: OrderedDict[str, _Cell] = OrderedDict()

    async def run(self, kernel: Kernel) -> None:
        """Keep what comes until the kernel ends. Not reading is back-pressure: its writers wait."""
        async for stream in kernel.background:
            for draft in self._drafts(stream):
                pending = self._log.append(self._session_id, [draft])
                await self._log.room(self._session_id)
                if isinstance(kernel, LastingKernel):
                    await pending.wait()
                    kernel.keep(stream.cell)

    def _drafts(self, stream: Stream) -> list[Draft]:
        key = f"{stream.cell}/{stream.name}"
        data = self._redactor.feed(key, stream.data) if self._redactor else stream.data
        place: dict[str, int] = {}
        if stream.upto is not None:
            place["upto"] = stream.upto - self._redactor.held(key)
        cell = self._cells.pop(stream.cell, None) or _Cell()
        self._cells[stream.cell] = cell
        if len(self._cells) > MAX_CELLS:
            self._cells.popitem(last=False)
        kept = data[: max(0, self._most_bytes - cell.kept)]
        cell.kept += len(kept)
        cell.dropped += len(data) - len(kept)
        told: dict[str, Any] = {}
        if cell.dropped >= cell.tell_at:
            told["dropped_bytes"] = cell.dropped
            while cell.tell_at <= cell.dropped:
                cell.tell_at *= 2
        if not kept and not told:
            return []
        return [
            Draft(
                kind="output",
                call_id=stream.cell,
                data={"type": "stream", "name": stream.name, "background": True, **place, **told},
                blob=kept,
            )
        ]
