"""extensions.md rules 17, 27, 29 and 30: hooks that decide on calls, of whatever tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio

from replsvc.calls import CallRequest
from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import ExtensionError
from replsvc.extension.contract import (
    Block,
    Extension,
    HookContext,
    Hooks,
    Secret,
    ToolCallEvent,
    tool,
)
from replsvc.session import Session


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    """Nothing here looks into a kernel, so they need no isolation."""
    config = Config(isolation="none", limits=Limits(hook_timeout_s=1))
    async with Coordinator(config) as coordinator:
        yield coordinator


BLOCKED = "not that\n[blocked: not run; a policy forbids it]"
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool
def echo(text: str, times: int = 1) -> str:
    """Says it again."""
    ran.append(text)
    return text * times


tools = Extension(name="tools", tools=[echo])


def hooked(*handlers: Callable[..., Any], name: str = "gate", **fields: Any) -> Extension:
    return Extension(name=name, hooks=Hooks(tool_call=handlers), **fields)


async def refuse(event: ToolCallEvent, ctx: HookContext) -> Block | None:
    text = event.input.get("text", "") + event.input.get("code", "")
    return Block("not that", terminate=True) if "evil" in text else None


async def kinds(session: Session, call_id: str) -> list[str]:
    return [event.kind for event in await session.log.read(session.id, call_id=call_id)]


async def test_a_veto_stops_a_tools_call_before_it_runs(coordinator: Coordinator) -> None:
    async with coordinator.session(extensions=[tools, hooked(refuse)]) as session:
        call = await session.call("echo", {"text": "evil"})
        assert (call.status, call.is_error, call.text) == ("blocked", True, BLOCKED)
        assert call.terminate
        assert call.cause is not None
        assert (call.cause.kind, call.cause.message) == ("veto", "not that")
        assert await kinds(session, call.id) == ["call_started", "call_finished"]
        assert ran == []
        assert (await session.call("echo", {"text": "good"})).text == "good"


async def test_a_veto_stops_code_and_what_code_calls(coordinator: Coordinator) -> None:
    async with coordinator.session(extensions=[tools, hooked(refuse)]) as session:
        call = await session.run("evil = 1")
        assert (call.status, call.text, call.terminate) == ("blocked", BLOCKED, True)
        assert (await session.run("'evil'[:2] in dir()")).status == "blocked"
        code = (
            "try: tools.echo(text='ev' + 'il')\n"
            "except ToolError as error: print(error.type, error.message)"
        )
        assert (await session.run(code)).text == "ToolBlocked not that"
        assert ran == []


async def test_the_event_says_who_calls_what(coordinator: Coordinator) -> None:
    seen: list[ToolCallEvent] = []
    found: list[Session] = []

    async def outer() -> str:
        return (await found[0].call("echo", {"text": "x"})).text

    def watch(event: ToolCallEvent, ctx: HookContext) -> None:
        seen.append(event)

    listed = [tools, Extension(tools=[tool(handler=outer, description="d")]), hooked(watch)]
    async with coordinator.session(extensions=listed) as session:
        found.append(session)
        call = await session.run("tools.outer()")
    assert [(event.tool, event.source) for event in seen] == [
        ("repl", "client"),
        ("outer", "kernel"),
        ("echo", "extension"),
    ]
    assert [event.parent_call_id for event in seen] == [None, call.id, seen[1].call_id]
    assert seen[0].input == {"code": "tools.outer()", "title": ""}


async def test_handlers_run_in_order_and_the_first_block_ends_it(coordinator: Coordinator) -> None:
    said = []

    def saying(name: str, answer: Block | None = None) -> Callable[..., Any]:
        async def handler(event: ToolCallEvent, ctx: HookContext) -> Block | None:
            said.append(name)
            return answer

        return handler

    base = hooked(saying("base"), name="base")
    top = hooked(saying("one"), saying("two", Block()), saying("never"), dependencies=[base])
    async with coordinator.session(extensions=[tools, top]) as session:
        call = await session.call("echo", {"text": "x"})
    assert said == ["base", "one", "two"]
    # An empty reason still blocks.
    assert call.text.startswith("Blocked by the extension gate.")


async def test_a_changed_input_is_seen_by_the_next_checked_again_and_run(
    coordinator: Coordinator,
) -> None:
    def twice(event: ToolCallEvent, ctx: HookContext) -> None:
        key = "code" if event.tool == "repl" else "text"
        event.input[key] = event.input[key].replace("one", "two")

    def spoil(event: ToolCallEvent, ctx: HookContext) -> None:
        if event.input.get("text") == "two":
            event.input["times"] = "many"
        if event.input.get("code") == "'two spoiled'":
            event.input["more"] = 1

    async with coordinator.session(extensions=[tools, hooked(twice, spoil)]) as session:
        request = CallRequest(tool="echo", input={"text": "one!"})
        run = await session.submit(request)
        assert (await run.wait()).text == "two!"
        assert request.input == {"text": "one!"}
        (update,) = await session.log.read(session.id, call_id=run.id, kinds=["update"])
        assert update.data == {"changed_by": "gate", "input": {"text": "two!"}}
        assert (await session.run("'one'")).text == "=> 'two'"
        for call in (
            await session.call("echo", {"text": "one"}),
            await session.run("'one spoiled'"),
        ):
            assert call.cause is not None
            assert call.cause.kind == "invalid_input"
        assert ran == ["two!"]


async def test_an_invalid_or_unknown_call_asks_nobody(coordinator: Coordinator) -> None:
    asked = []
    async with coordinator.session(
        extensions=[tools, hooked(lambda event, ctx: asked.append(event.tool))]
    ) as session:
        await session.call("echo", {})
        await session.call("nothing", {})
        await session.call("repl", {"kode": "1"})
    assert asked == []


def _raises(event: ToolCallEvent, ctx: HookContext) -> None:
    raise KeyError("s3cr3t-key")


def _exits(event: ToolCallEvent, ctx: HookContext) -> None:
    raise SystemExit


async def _hangs(event: ToolCallEvent, ctx: HookContext) -> None:
    await trio.sleep_forever()


def _leaves_no_json(event: ToolCallEvent, ctx: HookContext) -> None:
    event.input["text"] = {1, 2}


def _replaces(event: ToolCallEvent, ctx: HookContext) -> None:
    event.input = 7  # type: ignore[assignment]


FAILING: dict[str, Callable[..., Any]] = {
    "KeyError: '[redacted]'": _raises,
    "SystemExit": _exits,
    "TimeoutError: it did not decide within 1 s": _hangs,
    "TypeError: it returned a bool, not a Block or None": lambda event, ctx: True,
    "ValueError: it left input that is no JSON: ": _leaves_no_json,
    "TypeError: it left a int as input, not a dict": _replaces,
}


@pytest.mark.parametrize("why", FAILING)
async def test_a_handler_that_can_not_decide_blocks_the_call(
    coordinator: Coordinator, why: str
) -> None:
    class Keeps:
        def code(self, opts: Any) -> str:
            return ""

        def description(self, opts: Any) -> str:
            return ""

    keeps = (Keeps(), {"key": Secret("s3cr3t-key")})
    async with coordinator.session(extensions=[tools, keeps, hooked(FAILING[why])]) as session:
        call = await session.call("echo", {"text": "x"})
        assert call.status == "blocked"
        said = f"The extension gate could not decide on this call: {why}"
        assert call.text.startswith(said)
        assert (await session.run("1")).status == "blocked"
        (told, *_) = await session.log.read(session.id, kinds=["extension_error"])
        assert (told.data["extension"], told.data["event"]) == ("gate", "tool_call")
        assert told.data["error"].startswith(why)
        assert ran == []


async def test_a_call_that_is_cancelled_while_it_is_decided_on_does_not_run(
    coordinator: Coordinator,
) -> None:
    asked = trio.Event()

    async def waits(event: ToolCallEvent, ctx: HookContext) -> None:
        asked.set()
        await trio.sleep_forever()

    for name, input_ in (("echo", {"text": "x"}), ("repl", {"code": "1"})):
        asked = trio.Event()
        async with coordinator.session(extensions=[tools, hooked(waits)]) as session:
            run = await session.submit(CallRequest(tool=name, input=input_))
            await asked.wait()
            run.control.cancel()
            assert (await run.wait()).status == "cancelled"
    assert ran == []


async def test_a_handler_has_its_extensions_resource_options_and_services(
    coordinator: Coordinator,
) -> None:
    class Allowed(set[str]): ...

    allowed = Extension(setup=lambda ctx: Allowed({"x"}), provides=[Allowed])

    def gate(event: ToolCallEvent, ctx: HookContext) -> Block | None:
        ctx.resource.append(event.input["text"])
        known = event.input["text"] in ctx.get_service(Allowed)
        return None if known else Block(f"{ctx.session.name}: {ctx.resource}")

    gated = hooked(gate, setup=lambda ctx: [], dependencies=[allowed])
    async with coordinator.session(name="Ada", extensions=[tools, gated]) as session:
        assert (await session.call("echo", {"text": "x"})).text == "x"
        assert (await session.call("echo", {"text": "y"})).text.startswith("Ada: ['x', 'y']")


async def test_in_a_batch_each_group_is_decided_on_in_its_order(coordinator: Coordinator) -> None:
    asked = []

    async def watch(event: ToolCallEvent, ctx: HookContext) -> Block | None:
        asked.append(event.input["text"])
        return Block("no") if event.input["text"] == "b" else None

    async with coordinator.session(extensions=[tools, hooked(watch)]) as session:
        batch = await session.batch(
            [CallRequest(tool="echo", input={"text": text}) for text in "abc"]
        )
    assert asked == ["a", "b", "c"]
    assert [call.status for call in batch.calls] == ["ok", "blocked", "ok"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tool_cal": refuse}, "there is no event 'tool_cal'; did you mean 'tool_call'?"),
        ({"zebra": refuse}, "there is no event 'zebra'; there are: tool_call"),
        ({"tool_call": 7}, "a handler of tool_call must be callable, not 7"),
        ({"tool_call": [refuse, None]}, "a handler of tool_call must be callable, not None"),
    ],
)
def test_an_event_that_there_is_not_is_refused_with_the_nearest(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ExtensionError, match="Hooks: ") as caught:
        Hooks(**fields)
    assert problem in str(caught.value)
