"""A cell's talk with whoever answers it, and the cell's clock, which stands still meanwhile."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import trio

from replsvc_kernels.kernel import Cell, ProtocolViolation
from replsvc_kernels.messages import (
    InputRequest,
    InputWithdrawn,
    Output,
    ToolRequest,
    ToolWithdrawn,
)


class Clock:
    """A cell's budget of time: `deadline` is when it is used up.

    It stands still while the cell waits, for `max_wait_s` in all; then it goes on.
    """

    def __init__(
        self,
        timeout_s: float | None,
        moved: Callable[[float], object],
        max_wait_s: float | None = None,
    ) -> None:
        self.begun = trio.current_time()
        self.deadline = self.begun + timeout_s if timeout_s is not None else math.inf
        self._left_s = math.inf if max_wait_s is None else max_wait_s
        self._waited_s = self._since = 0.0
        self._waits = 0
        self._moved = moved

    @property
    def waited_s(self) -> float:
        """How long it has stood still."""
        return self._waited_s + (self._stood_s() if self._waits else 0.0)

    def _stood_s(self) -> float:
        return min(trio.current_time() - self._since, self._left_s)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still inside. Several may wait at once: it goes on when the last has left."""
        if not self._waits:
            self._since = trio.current_time()
            before, self.deadline = self.deadline, self.deadline + self._left_s
            self._before = before
            self._moved(self.deadline)
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if not self._waits:
                stood_s = self._stood_s()
                self._waited_s += stood_s
                self._left_s -= stood_s
                self.deadline = self._before + stood_s
                self._moved(self.deadline)

    def stop(self) -> None:
        """Its deadline is nobody's any more."""
        self._moved = bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody answered; None is the end of input, and `why` it has come."""

    text: str | None = field(repr=False)
    why: str = ""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool's call came to: plain data, or an error of a `message` and a `type`."""

    result: object = field(default=None, repr=False)
    error: Mapping[str, str] | None = None


Ask = Callable[[InputRequest, Clock], Awaitable[Answer]]
"""Gets an answer, with the clock paused where that takes time. Cancelled when it is not wanted."""
CallTool = Callable[[ToolRequest, Clock], Awaitable[ToolAnswer]]
"""Calls a tool, in the same way."""


class Talk:
    """Takes a cell's outputs, and answers what it asks among them by tasks in `nursery`.

    The others go on to `sink` meanwhile: a thread may print while another one waits. A question
    that the code asks no more, or asks again, is asked no longer; nor is a tool's call.
    """

    def __init__(
        self,
        cell: Cell,
        ask: Ask | None,
        call: CallTool | None,
        clock: Clock,
        sink: Callable[[Output], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        self._cell, self._ask, self._call, self._clock = cell, ask or _nobody, call, clock
        self._sink, self._nursery = sink, nursery
        self._asking = trio.CancelScope()
        self._calling: dict[int, trio.CancelScope] = {}

    async def take(self, output: Output) -> None:
        """Take one output; returns when the sink has it."""
        match output:
            case InputRequest():
                self._asking.cancel()
                self._asking = trio.CancelScope()
                self._nursery.start_soon(self._answer, output, self._asking)
            case InputWithdrawn():
                self._asking.cancel()
            case ToolRequest():
                calling = self._calling[output.id] = trio.CancelScope()
                self._nursery.start_soon(self._answer_tool, output, calling)
            case ToolWithdrawn():
                if (calling_ := self._calling.pop(output.id, None)) is not None:
                    calling_.cancel()
            case _:
                await self._sink(output)

    def close(self) -> None:
        """Ask nobody any more: the cell is being ended, and what it asks has no answer.

        Tools that it waits for go on until it does not wait: it is about to be interrupted.
        """
        self._asking.cancel()
        self._clock.stop()
        self._ask, self._call = _nobody, None

    async def _answer(self, request: InputRequest, asking: trio.CancelScope) -> None:
        with asking:
            answer = await self._ask(request, self._clock)
            # A kernel that breaks the protocol here is ended for it, and its cell says so.
            with suppress(ProtocolViolation):
                await self._cell.answer(request, answer.text, why=answer.why)

    async def _answer_tool(self, request: ToolRequest, calling: trio.CancelScope) -> None:
        with calling:
            answer = _ENDING if self._call is None else await self._call(request, self._clock)
            with suppress(ProtocolViolation):
                await self._cell.answer_tool(request.id, result=answer.result, error=answer.error)
        # A kernel may use a number again as soon as it has its answer.
        if self._calling.get(request.id) is calling:
            del self._calling[request.id]


async def _nobody(_request: InputRequest, _clock: Clock) -> Answer:
    return Answer(None, "the call is being ended")


_ENDING = ToolAnswer(error={"type": "ToolCallLost", "message": "the call is being ended"})
