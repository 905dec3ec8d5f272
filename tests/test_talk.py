"""A cell's clock and its questions, on a fake kernel and a clock that jumps."""

from __future__ import annotations

import contextlib

import trio
from trio.testing import MockClock

from replsvc.cell import CellControl, CellEnd, run_cell
from replsvc.talk import Answer, Ask, CallTool, Clock, ToolAnswer
from replsvc_kernels.kernel import LaunchSpec
from replsvc_kernels.messages import InputRequest, Output, Stream, ToolRequest, ToolSpec
from replsvc_kernels.testing import Ask as AskStep
from replsvc_kernels.testing import CallTool as CallStep
from replsvc_kernels.testing import FakeBackend, Hang, HangHard, Step


async def run(
    *steps: Step,
    ask: Ask | None = None,
    call: CallTool | None = None,
    timeout_s: float | None = 10,
    max_wait_s: float | None = None,
    control: CellControl | None = None,
) -> tuple[CellEnd, list[Output]]:
    seen: list[Output] = []

    async def sink(output: Output) -> None:
        seen.append(output)

    async with FakeBackend({"code": steps}).open(LaunchSpec("/anywhere")) as kernel:
        end = await run_cell(
            kernel, "code", cell_id="c", env={}, timeout_s=timeout_s, grace_s=1,
            control=control or CellControl(), sink=sink, ask=ask, max_wait_s=max_wait_s,
            call=call, tools=(ToolSpec("t"),) if call else (),
        )  # fmt: skip
    return end, seen


def after(delay_s: float, text: str | None = "it") -> Ask:
    async def ask(_request: InputRequest, clock: Clock) -> Answer:
        with clock.paused():
            await trio.sleep(delay_s)
        return Answer(text)

    return ask


async def test_waiting_is_not_counted(autojump_clock: MockClock) -> None:
    steps = [AskStep("1? "), AskStep("2? "), Hang()]
    end, _ = await run(*steps, ask=after(1_000), timeout_s=10)
    assert end.stopped == "timeout"
    assert (round(end.wait_s, 3), round(end.execution_s, 3)) == (2_000, 10)
    assert trio.current_time() == end.wait_s + end.execution_s


async def test_an_answer_goes_to_the_code_and_the_question_to_nobody_else(
    autojump_clock: MockClock,
) -> None:
    def then(name: str) -> list[Step]:
        return [Stream("stdout", name.encode())]

    end, seen = await run(AskStep("name? ", then=then), ask=after(1, "Ada"))
    assert end.reply is not None
    assert end.reply.status == "ok"
    assert seen == [Stream("stdout", b"Ada", "c")]


async def test_without_anybody_to_ask_asking_fails(autojump_clock: MockClock) -> None:
    end, _ = await run(AskStep("name? "), ask=None)
    assert end.reply is not None
    assert end.reply.failure is not None
    assert end.reply.failure.ename == "StdinNotImplementedError"


async def test_an_interrupt_cancels_the_question_and_the_clock_goes_on(
    autojump_clock: MockClock,
) -> None:
    control, cancelled = CellControl(), []

    async def ask(_request: InputRequest, clock: Clock) -> Answer:
        with clock.paused():
            control.interrupt()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                cancelled.append(trio.current_time())
                raise

    end, _ = await run(AskStep("? "), ask=ask, control=control)
    assert len(cancelled) == 1
    assert end.reply is not None
    assert end.reply.failure is not None
    assert (end.stopped, end.reply.failure.ename) == ("interrupted", "KeyboardInterrupt")


async def test_a_cell_that_is_ended_while_it_asks_does_not_hold_up_the_ladder(
    autojump_clock: MockClock,
) -> None:
    control = CellControl()

    async def ask(_request: InputRequest, clock: Clock) -> Answer:
        with clock.paused():
            control.cancel()
            await trio.sleep_forever()
        raise AssertionError

    end, _ = await run(AskStep("? "), ask=ask, control=control)
    assert end.stopped == "cancelled"
    assert trio.current_time() < 5


async def test_a_pause_on_the_ladder_moves_nothing(autojump_clock: MockClock) -> None:
    """The grace is the ladder's, whatever the clock does."""
    end, _ = await run(AskStep("? "), HangHard(), ask=after(3), timeout_s=2)
    assert (end.stopped, end.exit is not None) == ("timeout", True)
    # 3 asking, 2 running, then a second each for interrupt and terminate.
    assert round(trio.current_time(), 1) == 7


def takes(delay_s: float) -> CallTool:
    async def call(request: ToolRequest, clock: Clock) -> ToolAnswer:
        with contextlib.nullcontext() if request.background else clock.paused():
            await trio.sleep(delay_s)
        return ToolAnswer("done")

    return call


async def test_waiting_for_a_tool_is_not_counted(autojump_clock: MockClock) -> None:
    end, _ = await run(CallStep("t"), CallStep("t"), Hang(), call=takes(1_000), timeout_s=10)
    assert end.stopped == "timeout"
    assert (round(end.wait_s, 3), round(end.execution_s, 3)) == (2_000, 10)


async def test_a_thread_that_waits_does_not_stop_the_clock(autojump_clock: MockClock) -> None:
    end, _ = await run(CallStep("t", background=True), Hang(), call=takes(1_000), timeout_s=10)
    assert (end.stopped, end.wait_s, round(end.execution_s, 3)) == ("timeout", 0, 10)


async def test_the_clock_stands_still_for_max_wait_in_all_and_then_goes_on(
    autojump_clock: MockClock,
) -> None:
    steps = [CallStep("t"), CallStep("t"), Stream("stdout", b"never")]
    end, seen = await run(*steps, call=takes(60), timeout_s=10, max_wait_s=100)
    assert end.stopped == "timeout"
    assert (round(end.wait_s, 3), round(end.execution_s, 3)) == (100, 10)
    assert seen == []


async def test_waits_at_once_are_counted_once(autojump_clock: MockClock) -> None:
    clock = Clock(10, bool)

    async def wait(seconds: float) -> None:
        with clock.paused():
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (3, 5, 2):
            nursery.start_soon(wait, seconds)
        await trio.sleep(4)
        assert round(clock.waited_s, 3) == 4
    assert (round(clock.waited_s, 3), round(clock.deadline - clock.begun, 3)) == (5, 15)


async def test_on_the_ladder_no_tool_is_called(autojump_clock: MockClock) -> None:
    control, called, answered = CellControl(), [], []

    async def call(request: ToolRequest, clock: Clock) -> ToolAnswer:
        called.append(request.id)
        control.cancel()
        await trio.sleep_forever()
        raise AssertionError

    def again(_result: object) -> list[Step]:
        answered.append(1)
        return []

    steps = [CallStep("t", background=True), HangHard(), CallStep("t", then=again)]
    end, _ = await run(*steps, call=call, control=control)
    assert end.stopped == "cancelled"
    assert (called, answered) == ([1], [])
