"""A cell's talk with whoever answers it, and the cell's clock, which stands still meanwhile."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import trio

from replsvc_kernels.kernel import Cell, ProtocolViolation
from replsvc_kernels.messages import InputRequest, InputWithdrawn, Output


class Clock:
    """A cell's budget of time: `deadline` is when it is used up, never while the cell waits."""

    def __init__(self, timeout_s: float | None, moved: Callable[[float], object]) -> None:
        self.begun = trio.current_time()
        self.deadline = self.begun + timeout_s if timeout_s is not None else math.inf
        self.waited_s = 0.0
        self._moved = moved

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still inside; not to be nested."""
        before, since = self.deadline, trio.current_time()
        self.deadline = math.inf
        self._moved(math.inf)
        try:
            yield
        finally:
            waited_s = trio.current_time() - since
            self.waited_s += waited_s
            self.deadline = before + waited_s
            self._moved(self.deadline)

    def stop(self) -> None:
        """Its deadline is nobody's any more."""
        self._moved = bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody answered; None is the end of input, and `why` it has come."""

    text: str | None = field(repr=False)
    why: str = ""


Ask = Callable[[InputRequest, Clock], Awaitable[Answer]]
"""Gets an answer, with the clock paused where that takes time. Cancelled when it is not wanted."""


class Talk:
    """Takes a cell's outputs, and answers the questions among them by tasks in `nursery`.

    The others go on to `sink` meanwhile: a thread may print while another one waits. A question
    that the code asks no more, or asks again, is asked no longer.
    """

    def __init__(
        self,
        cell: Cell,
        ask: Ask,
        clock: Clock,
        sink: Callable[[Output], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        self._cell, self._ask, self._clock = cell, ask, clock
        self._sink, self._nursery = sink, nursery
        self._asking = trio.CancelScope()

    async def take(self, output: Output) -> None:
        """Take one output; returns when the sink has it."""
        match output:
            case InputRequest():
                self._asking.cancel()
                self._asking = trio.CancelScope()
                self._nursery.start_soon(self._answer, output, self._asking)
            case InputWithdrawn():
                self._asking.cancel()
            case _:
                await self._sink(output)

    def close(self) -> None:
        """Ask nobody any more: the cell is being ended, and what it asks has no answer."""
        self._asking.cancel()
        self._clock.stop()
        self._ask = _nobody

    async def _answer(self, request: InputRequest, asking: trio.CancelScope) -> None:
        with asking:
            answer = await self._ask(request, self._clock)
            # A kernel that breaks the protocol here is ended for it, and its cell says so.
            with suppress(ProtocolViolation):
                await self._cell.answer(request, answer.text, why=answer.why)


async def _nobody(_request: InputRequest, _clock: Clock) -> Answer:
    return Answer(None, "the call is being ended")
