"""What still comes of cells that have ended: their streams, and what is displayed for them."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import replace

import trio

from replsvc_kernels._merge import Merger
from replsvc_kernels.messages import BackgroundOutput, DisplayData, Output, Stream, StreamName

# Cells of which displays are still taken: those of earlier ones are let go.
MAX_ENDED = 256
# Displays are read with all other messages and can't be made to wait: more than this is let go.
MAX_WAITING_BYTES = 8 * 1024 * 1024


class EndedCell:
    """The order of what one cell's streams and displays say late."""

    def __init__(self, cell: str, merger: Merger | None = None) -> None:
        self.cell = cell
        self._merger = merger
        self._in_order = merger is not None

    def write(self, name: StreamName, data: bytes) -> list[Output]:
        """Bytes of a stream; none is its end."""
        assert self._merger is not None
        outputs = self._merger.feed(name, data) if data else []
        # Its other half of a marker may never come now: nothing waits for it.
        self._in_order = self._in_order and bool(data)
        return outputs if self._in_order else outputs + self._merger.flush()

    def show(self, number: int | None, output: DisplayData, size: int) -> list[Output]:
        """A display, as `Merger.display`."""
        if self._merger is None or not self._in_order:
            return [output]
        return self._merger.display(number, output, size)


class Late:
    """One kernel's: the backlog of what nobody has taken yet, and the cells it may be of."""

    def __init__(self) -> None:
        self._send, self.received = trio.open_memory_channel[BackgroundOutput](0)
        self._backlog: deque[BackgroundOutput] = deque()
        self._cells: OrderedDict[str, EndedCell] = OrderedDict()
        self._wakeup = trio.Event()
        self.waiting_bytes = 0

    def ended(self, request: str, cell: EndedCell) -> None:
        """The cell that this request ran has ended."""
        self._cells[request] = cell
        if len(self._cells) > MAX_ENDED:
            self._cells.popitem(last=False)

    def cell_of(self, request: str) -> EndedCell | None:
        """The ended cell that a message with this parent is of."""
        return self._cells.get(request)

    def show(self, cell: EndedCell, number: int | None, output: DisplayData, size: int) -> None:
        """A display that came after its cell's end."""
        if self.waiting_bytes and self.waiting_bytes + size > MAX_WAITING_BYTES:
            note = f"[a display of {size:,} bytes was left out: others before it still wait]"
            output = replace(output, data={"text/plain": note}, metadata={})
        self.add(cell.show(number, output, size), cell.cell)

    def add(self, outputs: Iterable[Output], cell: str) -> None:
        """Put outputs of an ended cell in the backlog."""
        for output in outputs:
            if isinstance(output, (Stream, DisplayData)):
                self._backlog.append(replace(output, cell=cell, background=True))
                self.waiting_bytes += _weight(output)
        if self._backlog:
            self._wakeup.set()

    def is_of(self, cell: str) -> bool:
        """Whether something of this cell waits."""
        return any(output.cell == cell for output in self._backlog)

    async def give_out(self) -> None:
        """Wait until there is something, and until all of it was taken."""
        await self._wakeup.wait()
        self._wakeup = trio.Event()
        while self._backlog:
            # Taken out only when it was given: cancellation loses nothing, and counts stay right.
            await self._send.send(self._backlog[0])
            self.waiting_bytes -= _weight(self._backlog.popleft())

    async def aclose(self) -> None:
        """Nothing comes any more."""
        await self._send.aclose()


def _weight(output: BackgroundOutput) -> int:
    if isinstance(output, Stream):
        return len(output.data)
    return sum(
        len(part) if isinstance(part, str) else len(json.dumps(part))
        for part in output.data.values()
    )
