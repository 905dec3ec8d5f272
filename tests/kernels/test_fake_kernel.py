"""What the fake offers beyond the contract: scripted launches, stubborn cells, a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Cell,
    KernelDied,
    KernelError,
    KernelInfo,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
    ProtocolViolation,
)
from replsvc_kernels.messages import Exit, SetupCode, Stream
from replsvc_kernels.testing import (
    Executed,
    Fail,
    FakeBackend,
    Hang,
    HangHard,
    Names,
    Violate,
    Wait,
)

SPEC = LaunchSpec("/anywhere")


async def take(cell: Cell) -> list[Any]:
    return [output async for output in cell]


async def test_launches_follow_their_script_on_trios_clock(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend = FakeBackend({}, launches=[LaunchError("no such python"), Hang(), None])
    with pytest.raises(LaunchError, match="no such python"):
        async with backend.open(SPEC):
            pass
    before = trio.current_time()
    slow = replace(SPEC, startup_timeout_s=3_600)
    with pytest.raises(LaunchTimeout):
        async with backend.open(slow):
            pass
    assert trio.current_time() - before == 3_600
    async with backend.open(SPEC) as third, backend.open(SPEC) as fourth:
        assert backend.kernels == [third, fourth]
    assert backend.specs == [SPEC, slow, SPEC, SPEC]
    assert third.exit == Exit(code=0)


async def test_it_records_what_was_asked_of_it() -> None:
    backend = FakeBackend({"a": [], "b": []})
    code = SetupCode("ext", "x = 1", "/x.py")
    async with backend.open(SPEC) as kernel:
        await kernel.setup(code)
        for name in "ab":
            async with kernel.execute(name, cell=f"cell {name}", env={"N": name}) as cell:
                await take(cell)
        await kernel.interrupt()
        await kernel.kill()
    (fake,) = backend.kernels
    assert fake.executed == [
        Executed("a", "cell a", {"N": "a"}),
        Executed("b", "cell b", {"N": "b"}),
    ]
    assert fake.setups == [code]
    assert fake.signals == ["interrupt", "kill"]


async def test_code_that_is_not_in_the_script_fails_visibly() -> None:
    async with FakeBackend({}).open(SPEC) as kernel, kernel.execute("?", cell="c") as cell:
        await take(cell)
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "UnscriptedCode"


@pytest.mark.parametrize(("terminates", "ended_by"), [(True, 15), (False, 9)])
async def test_a_stubborn_cell_ends_only_at_its_rung_of_the_ladder(
    terminates: bool, ended_by: int
) -> None:
    backend = FakeBackend({"loop": [HangHard(terminates=terminates)]})
    async with backend.open(SPEC) as kernel, kernel.execute("loop", cell="c") as cell:
        await cell.wait_started()
        assert await kernel.interrupt()
        await trio.testing.wait_all_tasks_blocked()
        assert kernel.exit is None
        await kernel.terminate()
        await trio.testing.wait_all_tasks_blocked()
        assert (kernel.exit is not None) == terminates
        await kernel.kill()
        with pytest.raises(KernelDied) as death:
            await take(cell)
        assert death.value.exit == Exit(signal=ended_by)


async def test_a_violation_ends_the_kernel_for_good() -> None:
    backend = FakeBackend({"lie": [Stream("stdout", b"x"), Violate("a forged reply")]})
    async with backend.open(SPEC) as kernel:
        async with kernel.execute("lie", cell="c") as cell:
            assert (await anext(aiter(cell))) == Stream("stdout", b"x", "c")
            with pytest.raises(ProtocolViolation, match="a forged reply"):
                await take(cell)
        with pytest.raises(ProtocolViolation):
            async with kernel.execute("lie", cell="d"):
                pass
        with pytest.raises(ProtocolViolation):
            await kernel.setup(SetupCode("x", "", ""))


async def test_a_cell_can_wait_for_the_test() -> None:
    event = trio.Event()
    backend = FakeBackend({"wait": [Wait(event), Stream("stdout", b"went on")]})
    async with backend.open(SPEC) as kernel, kernel.execute("wait", cell="c") as cell:
        await trio.testing.wait_all_tasks_blocked()
        assert cell.reply is None
        event.set()
        assert await take(cell) == [Stream("stdout", b"went on", "c")]


async def test_a_script_can_be_a_generator_of_the_code() -> None:
    def script(code: str) -> Iterator[Any]:
        for word in code.split():
            yield Stream("stdout", word.encode())
        yield Fail("Done")

    async with FakeBackend(script).open(SPEC) as kernel:
        async with kernel.execute("a b", cell="c") as cell:
            assert [output.data for output in await take(cell)] == [b"a", b"b"]
        assert cell.reply is not None
        assert cell.reply.status == "error"


async def test_setup_can_hang_until_it_is_interrupted() -> None:
    backend = FakeBackend({}, setup={"slow": [Names(("a",)), Hang()]})
    async with backend.open(SPEC) as kernel, trio.open_nursery() as nursery:
        reports = []

        async def set_up() -> None:
            reports.append(await kernel.setup(SetupCode("slow", "", "")))

        nursery.start_soon(set_up)
        await trio.testing.wait_all_tasks_blocked()
        await kernel.interrupt()
        await trio.testing.wait_all_tasks_blocked()
        assert reports[0].names == ("a",)
        assert reports[0].failure.ename == "KeyboardInterrupt"


async def test_a_fake_without_guest_refuses_setup() -> None:
    backend = FakeBackend({}, info=KernelInfo("bash", "5", has_guest=False))
    async with backend.open(SPEC) as kernel:
        with pytest.raises(KernelError, match="no guest"):
            await kernel.setup(SetupCode("x", "", ""))


async def test_a_consumer_whose_kernel_is_closed_is_told() -> None:
    backend = FakeBackend({"loop": [Hang()]})
    async with trio.open_nursery() as nursery:
        opened, deaths = trio.Event(), []

        async def consume(kernel: Any) -> None:
            async with kernel.execute("loop", cell="c") as cell:
                opened.set()
                try:
                    await take(cell)
                except KernelDied as death:
                    deaths.append(death)

        async with backend.open(SPEC) as kernel:
            nursery.start_soon(consume, kernel)
            await opened.wait()
    assert [death.exit for death in deaths] == [Exit(code=0)]


# The nursery that backends keep their tasks in.


async def test_background_tasks_end_with_the_body() -> None:
    async with background_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)


async def test_the_bodys_exception_leaves_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - what leaves the whole is the point
        async with background_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise ZeroDivisionError


async def test_a_background_task_that_fails_cancels_the_body_and_leaves_as_a_group() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as group:  # noqa: PT012 - as above
        async with background_nursery() as nursery:
            nursery.start_soon(fail)
            await trio.sleep_forever()
    assert isinstance(group.value.exceptions[0], ZeroDivisionError)


async def test_cancelling_from_outside_passes_through() -> None:
    with trio.CancelScope() as scope:
        async with background_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
