"""`HeldKernel`: a kernel that may outlive us, and goes on with its running cell for our successor.

Its outputs say how far they reach, so that a log of them tells where to go on; its guest keeps what
it published, and its pipes' bytes are held elsewhere, until `keep` says that they are safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import trio

from replsvc_kernels._cell import WireCell
from replsvc_kernels._channels import Message
from replsvc_kernels._merge import Merger
from replsvc_kernels._parse import count, parse_reply
from replsvc_kernels._pipes import Pair
from replsvc_kernels._spool import HeldPump, SpooledPipe
from replsvc_kernels._wire import Waiter, WireKernel, execute_content
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Cell, KernelError, LastingKernel, ProtocolViolation
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Kept,
    Limits,
    Output,
    Stream,
    StreamName,
)

# A request that was on its way when its sender died is with the kernel when it has answered this
# often: it takes from each of its clients in turn.
TURNS = 2
LEFT_OUT = b"[%d displays are missing: there was no room to keep them while the service was away]\n"


class _UpTo(set[int]):
    """Marks that have been shown: all up to one, and some after it."""

    upto = 0

    def __contains__(self, mark: object) -> bool:
        return isinstance(mark, int) and (mark <= self.upto or super().__contains__(mark))


class _Segment(bytes):
    """Bytes of a stream, and how far into it they reach."""

    end: int


class HeldMerger(Merger):
    """A merger whose outputs say how far they reach. With `shown` it goes on where one was lost."""

    def __init__(self, nonce: bytes, pair: Pair, shown: int = 0, *, turns: bool) -> None:
        super().__init__(nonce, pair.cell, turns=turns)
        self._fed: dict[StreamName, int] = {
            pipe.name: pipe.position for pipe in pair.pipes if isinstance(pipe, SpooledPipe)
        }
        self._shown = self._seen = _UpTo()
        self.skip(shown)

    def skip(self, shown: int) -> None:
        """Displays up to this mark do not come again."""
        self._seen.upto = max(self._seen.upto, shown)

    def feed(self, name: StreamName, data: bytes) -> list[Output]:
        """See `Merger.feed`."""
        self._fed[name] += len(data)
        return self._placed(super().feed(name, data))

    def display(self, number: int | None, output: Output, size: int = 0) -> list[Output]:
        """See `Merger.display`."""
        if number is not None and isinstance(output, DisplayData | ExecuteResult | ClearOutput):
            output = replace(output, mark=number)
        return self._placed(super().display(number, output, size))

    def flush(self) -> list[Output]:
        """See `Merger.flush`."""
        return self._placed(super().flush())

    def _placed(self, outputs: list[Output]) -> list[Output]:
        return [
            replace(one, data=bytes(one.data), upto=getattr(one.data, "end", self._fed[one.name]))
            if isinstance(one, Stream) and one.upto is None
            else one
            for one in outputs
        ]

    def _split(self, name: StreamName, data: bytes) -> list[bytes | int]:
        segments = super()._split(name, data)
        base, start = self._fed[name] - len(data), 0
        ends = []
        for marker in self._marker.finditer(data):
            if marker.start() > start:
                ends.append(marker.start())
            start = marker.end()
        ends.append(len(data) - len(self._rest[name]))
        placed: list[bytes | int] = []
        for segment in segments:
            if not isinstance(segment, int):
                segment = _Segment(segment)  # noqa: PLW2901 - the same, and where it ends
                segment.end = base + ends.pop(0)
            placed.append(segment)
        return placed


class _HeldCell(WireCell):
    """A cell whose outputs say how far they reach."""

    def __init__(self, kernel: HeldKernel, nonce: bytes, pair: Pair, kept: Kept | None) -> None:
        super().__init__(pair.cell, nonce, kernel.pump, pair, kernel.probe, kernel.send_answer)
        self._limits = kernel.limits
        # After a loss one stream may stand before a turn that the other has passed.
        self._merger = self._held = HeldMerger(
            nonce, pair, kept.mark if kept is not None else 0, turns=kept is None
        )
        self.request: str | None = None
        self.found = trio.Event()
        """Set when the guest has said again what it kept of this cell."""

    async def put(self, message: Message) -> None:
        """See `WireCell.put`; a guest that was asked to say it again replies here, too."""
        if message.type == "execute_reply":
            self.end(parse_reply(message, self._limits))
        else:
            await super().put(message)

    def begin_again(self, content: Mapping[str, Any]) -> None:
        """The guest says what it kept, from here on."""
        request = content.get("request")
        self.request = request if isinstance(request, str) and request else None
        if self.request is not None:
            # How many it published is more than we shall hear: only its idle says that it is all.
            self._published = -(10**12)
            self._started.set()
            self._held.skip((count(content.get("from")) or 1) - 1)
            left_out = count(content.get("left_out"))
            if left_out:
                self._ready.append(Stream("stderr", LEFT_OUT % left_out, self.cell))
                self._wakeup.set()
        self.found.set()


class _Again(Waiter):
    """Waits for the guest to begin again: what follows on iopub is the cell's, message by message.

    Not a task that is woken: the next message is read before that runs.
    """

    def __init__(self, cells: dict[str, WireCell], cell: _HeldCell) -> None:
        super().__init__()
        self._cells, self._cell = cells, cell

    def put(self, message: Message) -> None:
        """From the iopub reader."""
        if message.type == "replay_begin" and not self._cell.found.is_set():
            self._cell.begin_again(message.content)
            if self._cell.request is not None:
                self._cells[self._cell.request] = self._cell


class HeldKernel(WireKernel, LastingKernel):
    """See the module."""

    _pump: HeldPump

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._kept: dict[str, Kept] = {}
        self._pairs: dict[str, Pair] = {}
        self._told_tools = None  # another host may have told it of tools

    @property
    def limits(self) -> Limits:
        """What is accepted from it."""
        return self._limits

    @property
    def pump(self) -> HeldPump:
        """Its pipes."""
        return self._pump

    def probe(self, cell: WireCell) -> None:
        """See `WireKernel._probe`."""
        self._probe(cell)

    async def send_answer(self, to: Message, value: str, why: str) -> None:
        """See `WireKernel._send_answer`."""
        await self._send_answer(to, value, why)

    def take_over(self, pair: Pair, kept: Kept, *, running: bool) -> None:
        """Go on with a pair that was held. Without its cell, what comes is background."""
        self._pairs[pair.cell], self._kept[pair.cell] = pair, kept
        if not running:
            self._let_go(pair)

    def _new_cell(self, cell: str, pair: Pair | None) -> WireCell:
        assert pair is not None
        for known, other in list(self._pairs.items()):
            if not other.open and known not in self._kept:
                del self._pairs[known]
        self._pairs[cell] = pair
        self._kept[cell] = Kept()
        # Before it is asked to run: whatever it writes is known to be this cell's.
        self._pump.name_cell(pair)
        return _HeldCell(self, self._nonce, pair, None)

    def _late_merger(self, pair: Pair) -> Merger:
        if not all(isinstance(pipe, SpooledPipe) for pipe in pair.pipes):
            return super()._late_merger(pair)
        return HeldMerger(self._nonce, pair, turns=False)

    async def _send(
        self,
        channel: Literal["shell", "control"],
        type_: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        if type_ == "execute_request" and metadata:
            # What is said with the reply alone could not be said again.
            metadata = {"replsvc": {**metadata["replsvc"], "brief": False}}
        return await super()._send(channel, type_, content, metadata)

    def keep(self, cell: str, kept: Kept | None = None) -> None:
        """See `LastingKernel.keep`."""
        pair = self._pairs.get(cell)
        if kept is None:
            self._kept.pop(cell, None)
        elif pair is not None and cell in self._kept:
            before, self._kept[cell] = self._kept[cell], kept
            if kept.mark > before.mark and self._process.exit is None:
                content = {"pair": pair.number, "after": kept.mark}
                # A kernel that does not read now is told of later ones: they say this, too.
                with contextlib.suppress(ProtocolViolation):
                    self._channels.request("control", "kept_request", content)
        if pair is not None:
            # What waits to be given out is not kept by anybody yet.
            waits = self._late.is_of(cell)
            for pipe in pair.pipes:
                assert isinstance(pipe, SpooledPipe)
                if kept is not None:
                    pipe.keep(kept.streams.get(pipe.name, 0))
                elif not waits:
                    pipe.keep(pipe.position)
        self._pump.let_go(self._has_more)

    def _has_more(self, cell: str) -> bool:
        """Whether some of a cell's output may not have been kept yet."""
        return cell in self._kept or self._late.is_of(cell)

    async def shutdown(self, grace_s: float) -> None:
        """See `WireKernel.shutdown`."""
        if not self._pump.keeps.leaving:
            await super().shutdown(grace_s)

    # What a successor does

    @asynccontextmanager
    async def resume(
        self, code: str, *, cell: str, env: Mapping[str, str] | None = None
    ) -> AsyncIterator[Cell]:
        """See `LastingKernel.resume`."""
        pair = self._pairs.get(cell)
        if pair is None:
            async with self.execute(code, cell=cell, env=env) as running:
                yield running
            return
        again = _HeldCell(self, self._nonce, pair, self._kept[cell])
        # So that its end is told to the cell; no message has such a parent.
        key = f"again {cell}"
        self._cells[key] = again
        if self._violation is not None or self._process.exit is not None:
            again.fail(self._end())
        try:
            async with background_nursery() as nursery:
                nursery.start_soon(self._find, again, code, pair, dict(env or {}))
                yield again
        finally:
            for id_ in (again.request, key):
                self._cells.pop(id_ or "", None)
            self._leave(again, pair, again.request or key)

    async def _find(self, cell: _HeldCell, code: str, pair: Pair, env: Mapping[str, str]) -> None:
        """Have the guest say again what it kept of a cell; run one that has never begun."""
        with contextlib.suppress(KernelError):  # the cell is told, too
            await self.wait_welcome()
            for turn in range(TURNS + 1):
                if await self._replayed(cell, pair):
                    return
                if turn < TURNS:
                    await self.request("shell", "kernel_info_request", {})
            metadata = {"replsvc": {"pair": pair.number, "env": dict(env)}}
            content = execute_content(code)
            cell.request = await self._send("shell", "execute_request", content, metadata)
            self._cells[cell.request] = cell

    async def _replayed(self, cell: _HeldCell, pair: Pair) -> bool:
        cell.found = trio.Event()
        content = {"pair": pair.number, "after": self._kept[pair.cell].mark}
        id_ = await self._send("control", "replay_request", content)
        self._waiting[id_] = _Again(self._cells, cell)
        try:
            await cell.found.wait()
        finally:
            del self._waiting[id_]
        return cell.request is not None
