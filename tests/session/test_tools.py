"""extensions.md rules 14-18: tools that are called directly, with real sessions."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from replsvc.calls import Call, CallRequest, Event
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import StaleContextError
from replsvc.extension.contract import Extension, Image, Secret, Tool, ToolContext, ToolResult, tool
from replsvc.session import Session

Opens = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    """Sessions with one extension that has these tools; none of them looks into the kernel."""
    async with Coordinator(Config(isolation="none")) as coordinator:

        @asynccontextmanager
        async def opened(*tools: Tool[Any], **fields: Any) -> AsyncIterator[Session]:
            extension = Extension(name="ours", tools=tools)
            async with coordinator.session(extensions=[extension], **fields) as session:
                yield session

        yield opened


def made(handler: Callable[..., Any], **fields: Any) -> Tool[Any]:
    return tool(handler=handler, **{"name": "t", "description": "d", **fields})


async def kinds(session: Session, call: Call) -> list[str]:
    return [event.kind for event in await events(session, call)]


async def events(session: Session, call: Call) -> list[Event]:
    found: list[Event] = []
    async for some in session.log.follow(session.id, 0):
        found += [event for event in some if event.call_id == call.id]
        if found and found[-1].kind == "call_finished":
            return found
    raise AssertionError("the log ended before the call")


async def test_a_tool_is_listed_called_and_logged(opens: Opens) -> None:
    async def save(text: str, ctx: ToolContext) -> str:
        """Saves a note."""
        ctx.update({"at": 1})
        return f"{ctx.session.id} {ctx.call_id} {text}"

    async with opens(tool(save)) as session:
        assert [one.name for one in await session.tools()] == ["repl", "save"]
        call = await session.call("save", {"text": "x"})
        assert (call.status, call.text) == ("ok", f"{session.id} {call.id} x")
        assert await kinds(session, call) == ["call_started", "update", "call_finished"]
        assert (await session.info()).extensions[0].tools == ("save",)


async def test_invalid_input_and_an_unknown_tool_start_and_end_and_run_nothing(
    opens: Opens,
) -> None:
    ran = []

    def handler(n: int) -> None:
        ran.append(n)

    async with opens(made(handler)) as session:
        wrong = await session.call("t", {"n": "x", "m": 1})
        assert wrong.cause is not None
        assert (wrong.status, wrong.cause.kind) == ("error", "invalid_input")
        assert wrong.text == (
            "Invalid input for t: n: Input should be a valid integer, unable to parse string as an "
            "integer; m: Extra inputs are not permitted."
        )
        unknown = await session.call("tt", {})
        assert unknown.text == "There is no tool 'tt'. Did you mean 't'? Tools: repl, t."
        assert await kinds(session, unknown) == ["call_started", "call_finished"]
    assert ran == []


async def test_prepare_mends_the_input_before_it_is_checked(opens: Opens) -> None:
    def prepare(raw: dict[str, Any]) -> dict[str, Any]:
        return {"n": raw.pop("number")}

    async with opens(made(_number, prepare=prepare)) as session:
        assert (await session.call("t", {"number": 3})).text == "3"
        broken = await session.call("t", {"n": 3})
        assert broken.cause is not None
        assert broken.cause.kind == "invalid_input"
        assert "KeyError: 'number'" in broken.text


def _number(n: int) -> int:
    return n


class OwnEnd(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("v"), OwnEnd("v"), SystemExit("v"), KeyboardInterrupt("v")], ids=repr
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_handler_raises_is_the_calls_error(
    opens: Opens, error: BaseException, is_async: bool
) -> None:
    def in_thread() -> None:
        raise error

    async def in_trio() -> None:
        raise error

    async with opens(made(in_trio if is_async else in_thread)) as session:
        call = await session.call("t", {})
        assert call.status == "error"
        assert call.error is not None
        assert (call.error.ename, call.error.evalue) == (type(error).__name__, "v")
        assert call.text == f"The tool t (extension ours) failed: {type(error).__name__}: v"
        assert call.details == {"extension": "ours"}
        assert (await session.run("1 + 1")).text == "=> 2"


async def test_a_failing_nursery_of_a_handler_is_the_calls_error(opens: Opens) -> None:
    async def handler() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise ValueError

    async with opens(made(handler)) as session:
        call = await session.call("t", {})
        assert call.error is not None
        assert call.error.ename == "ExceptionGroup"


@pytest.mark.parametrize("value", [b"x", {1}, float("nan"), object(), {"a": [{2}]}])
async def test_a_result_that_is_none_says_where(opens: Opens, value: object) -> None:
    async with opens(made(lambda: value)) as session:
        call = await session.call("t", {})
        assert call.status == "error"
        assert "The tool t (extension ours) failed: ResultError: it returned its result" in (
            call.text
        )


async def test_a_long_result_is_cut_for_the_model_and_whole_in_the_log(opens: Opens) -> None:
    text = "0123456789abcdef\n" * 1_000_000
    async with opens(made(lambda: text)) as session:
        call = await session.call("t", {})
        assert call.status == "ok"
        assert len(call.text) <= session.limits.max_output_bytes
        assert call.output.truncated
        assert call.output.total_bytes == len(text)
        assert call.output.artifact == f"{call.id}.log"
        pieces = [piece async for piece in session.log.output_bytes(session.id, call.id)]
        assert b"".join(pieces) == text.encode()


async def test_a_result_may_be_an_error_and_have_details_and_images(opens: Opens) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 3, 8, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(b"\0\0\0" * 3))
    png = b"\x89PNG\r\n\x1a\n" + header + rows + chunk(b"IEND", b"")
    result = ToolResult(
        content=["see", Image(png), Image(b"none")], details={"n": 1}, is_error=True
    )
    async with opens(made(lambda: result)) as session:
        call = await session.call("t", {})
        assert (call.status, call.is_error, call.details) == ("error", True, {"n": 1})
        assert [part.type for part in call.content] == ["text", "image"]
        assert call.cost.image_px == 6
        assert call.text == (
            "see\n[image/png of 6 bytes is not shown: it is damaged, or of another type]"
        )


async def test_secrets_are_redacted_in_results_errors_and_updates() -> None:
    secret = Secret("hush-hush")

    class Hides:
        @staticmethod
        def code(opts):  # type: ignore[no-untyped-def]
            return ""

        @staticmethod
        def description(opts):  # type: ignore[no-untyped-def]
            return ""

    def tells(how: str, ctx: ToolContext) -> object:
        ctx.update("hush-hush")
        if how == "raise":
            raise ValueError("hush-hush")
        return {"hush-hush": ["hush-hush"]} if how == "json" else "hush-hush"

    ours = Extension(name="ours", tools=[made(tells)])
    async with (
        Coordinator(Config(isolation="none")) as coordinator,
        coordinator.session(extensions=[(Hides, {"key": secret}), ours]) as session,
    ):
        for how in ("raise", "json", "text"):
            call = await session.call("t", {"how": how})
            assert "hush" not in call.model_dump_json()
            assert "[redacted]" in call.text
            for event in await events(session, call):
                assert "hush" not in event.model_dump_json()


# Deadlines and cancellation


async def test_a_tool_has_a_deadline_of_its_own(opens: Opens) -> None:
    async with opens(made(trio.sleep_forever, timeout_s=0.05)) as session:
        call = await session.call("t", {})
        assert call.cause is not None
        assert (call.status, call.cause.kind, call.cause.limit) == ("timeout", "wall", 0.05)
        assert call.text == "[timeout: the tool t ran longer than its 0.05 s]"


async def test_a_thread_that_ignores_its_deadline_is_left_to_itself(opens: Opens) -> None:
    release, late = threading.Event(), []

    def stubborn(ctx: ToolContext) -> None:
        release.wait(60)
        ctx.update("too late")
        late.append(ctx.cancelled)
        try:
            ctx.call_id  # noqa: B018 - looking is the test
        except StaleContextError as error:
            late.append(str(error))

    async with opens(made(stubborn, timeout_s=0.05)) as session:
        call = await session.call("t", {})
        assert call.status == "timeout"
        release.set()
        while len(late) < 2:
            await trio.lowlevel.checkpoint()
        assert late[0] is True
        assert call.id in str(late[1])
        assert await kinds(session, call) == ["call_started", "call_finished"]


async def test_cancelling_the_caller_cancels_the_handler(opens: Opens) -> None:
    began, ended = trio.Event(), trio.Event()

    async def waits() -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with opens(made(waits)) as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.call, "t", {})
            await began.wait()
            nursery.cancel_scope.cancel()
        assert ended.is_set()
        assert (await session.run("1 + 1")).text == "=> 2"


async def test_closing_a_session_ends_its_tools(opens: Opens) -> None:
    began = trio.Event()

    async def waits() -> None:
        began.set()
        await trio.sleep_forever()

    async with opens(made(waits)) as session:
        run = await session.submit(CallRequest(tool="t"))
        await began.wait()
    call = await run.wait()
    assert call.cause is not None
    assert (call.status, call.cause.kind) == ("killed", "service_stop")


async def test_tools_run_beside_a_cell_and_each_other(opens: Opens) -> None:
    both = [trio.Event(), trio.Event()]

    async def meets(n: int) -> str:
        both[n].set()
        await both[1 - n].wait()
        return "met"

    async with opens(made(meets)) as session:
        cell = await session.submit(CallRequest(input={"code": "input()"}, stdin=True))
        batch = await session.batch([CallRequest(tool="t", input={"n": n}) for n in range(2)])
        assert [call.text for call in batch.calls] == ["met", "met"]
        assert not cell.ended
        cell.control.cancel()


# Batches


async def test_groups_end_before_the_next_begins_and_results_keep_their_order(
    opens: Opens,
) -> None:
    log: list[str] = []
    first_done = trio.Event()

    async def parallel(n: int) -> str:
        log.append(f"+{n}")
        if n == 0:
            await first_done.wait()
        else:
            first_done.set()
        log.append(f"-{n}")
        return str(n)

    async def alone(n: int) -> None:
        log.append(f"+{n}")
        await trio.lowlevel.checkpoint()
        log.append(f"-{n}")
        raise ValueError("errors stop nothing")

    tools = made(parallel, name="p"), made(alone, name="s", execution="sequential")
    async with opens(*tools) as session:
        names = ["p", "p", "s", "s", "p"]
        batch = await session.batch(
            [CallRequest(tool=name, input={"n": n}) for n, name in enumerate(names)]
        )
    assert [call.status for call in batch.calls] == ["ok", "ok", "error", "error", "ok"]
    assert [call.tool for call in batch.calls] == names
    assert sorted(log[:2]) == ["+0", "+1"]
    assert log[2:] == ["-1", "-0", "+2", "-2", "+3", "-3", "+4", "-4"]


async def test_inputs_of_a_group_are_prepared_in_their_order(opens: Opens) -> None:
    prepared: list[int] = []

    async def prepare(raw: dict[str, Any]) -> dict[str, Any]:
        # The first one takes the longest.
        for _ in range(50 - 10 * raw["n"]):
            await trio.lowlevel.checkpoint()
        prepared.append(raw["n"])
        return raw

    async with opens(made(_number, prepare=prepare)) as session:
        requests = [CallRequest(tool="t", input={"n": n}) for n in range(5)]
        await session.batch([*requests, CallRequest(tool="unknown"), *requests])
    assert prepared == [0, 1, 2, 3, 4] * 2


async def test_after_a_cancelled_call_later_groups_are_cancelled_too(opens: Opens) -> None:
    ran = []

    async def gives_up(ctx: ToolContext) -> None:
        ctx.cancel_scope.cancel()
        await trio.sleep_forever()

    tools = made(gives_up, name="g", execution="sequential"), made(lambda: ran.append(1), name="r")
    async with opens(*tools) as session:
        batch = await session.batch(
            [CallRequest(tool="g"), CallRequest(tool="r"), CallRequest(input={"code": "1"})]
        )
    assert [call.status for call in batch.calls] == ["cancelled"] * 3
    assert ran == []


@pytest.mark.parametrize(("says", "is_"), [([True, True], True), ([True, False], False)])
async def test_a_batch_terminates_when_every_result_says_so(
    opens: Opens, says: list[bool], is_: bool
) -> None:
    def handler(end: bool) -> ToolResult:
        return ToolResult(content="done", terminate=end)

    async with opens(made(handler)) as session:
        batch = await session.batch([CallRequest(tool="t", input={"end": end}) for end in says])
        assert batch.terminate is is_
        assert (await session.batch([])).terminate is False


async def test_a_group_with_the_same_id_twice_is_one_call(opens: Opens) -> None:
    ran = []
    async with opens(made(lambda: ran.append(1))) as session:
        again = CallRequest(tool="t", id="one")
        batch = await session.batch([again, CallRequest(tool="t", id="two"), again])
    assert batch.calls[0] == batch.calls[2]
    assert len(ran) == 2


async def test_two_sessions_share_a_definition_and_nothing_else(opens: Opens) -> None:
    async def where(ctx: ToolContext) -> str:
        return ctx.session.id

    one = made(where)
    async with opens(one) as first, opens(one) as second:
        assert (await first.call("t", {})).text == first.id
        assert (await second.call("t", {})).text == second.id
        assert first.runtime.threads is not second.runtime.threads
