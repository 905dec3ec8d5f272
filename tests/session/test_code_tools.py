"""extensions.md rule 16: tools that code in the kernel calls, with real kernels."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from pydantic import BaseModel

from replsvc.calls import Call, CallRequest, Event
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.extension.contract import Extension, Image, Secret, Tool, ToolContext, ToolResult, tool
from replsvc.session import Session

MakeConfig = Callable[..., Config]
Opens = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
async def opens(make_config: MakeConfig) -> AsyncIterator[Opens]:
    """Sessions with one extension that has these tools."""
    async with Coordinator(make_config()) as coordinator:

        @asynccontextmanager
        async def opened(*tools: Tool[Any], **fields: Any) -> AsyncIterator[Session]:
            extensions = [Extension(name="ours", tools=tools)] if tools else []
            async with coordinator.session(extensions=extensions, **fields) as session:
                yield session

        yield opened


def made(handler: Callable[..., Any], **fields: Any) -> Tool[Any]:
    return tool(handler=handler, **{"name": "t", "description": "d", **fields})


@tool
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


async def events(session: Session) -> list[Event]:
    found: list[Event] = []
    while some := await session.log.read(session.id, found[-1].seq if found else 0):
        found += some
    return found


async def children(session: Session, parent: Call) -> list[Call]:
    """How the calls ended that a call's code made, in the order of their ends."""
    calls = [
        Call.model_validate(event.data["call"])
        for event in await events(session)
        if event.kind == "call_finished"
    ]
    return [call for call in calls if call.parent_call_id == parent.id]


class Point(BaseModel):
    x: int
    tags: list[str] = []


PIXEL = b"".join(
    struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\0")),
        (b"IEND", b""),
    )
)
PNG = b"\x89PNG\r\n\x1a\n" + PIXEL


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (3, "3"),
        (None, "None"),
        ("", "''"),
        ('"""+x\n{}', repr('"""+x\n{}')),
        ({"a": [1.5, None, True]}, "{'a': [1.5, None, True]}"),
        (Point(x=1, tags=["é"]), "{'x': 1, 'tags': ['é']}"),
        (ToolResult(content=["a", "b"], details={"n": 1}), "'a\\nb'"),
    ],
    ids=repr,
)
async def test_code_gets_what_the_handler_returned_as_plain_data(
    opens: Opens, value: Any, got: str
) -> None:
    async with opens(made(lambda: value)) as session:
        assert (await session.run("print(repr(tools.t()))")).text == got
        assert (await session.run("print(repr(await tools.t.call()))")).text == got


async def test_images_are_parts_beside_the_text(opens: Opens) -> None:
    async with opens(made(lambda: ToolResult(content=["see", Image(PNG)]))) as session:
        call = await session.run(
            "import base64\n"
            "text, image = tools.t()\n"
            "text, image['mime_type'], len(base64.b64decode(image['data']))"
        )
        assert call.text == f"=> ({{'type': 'text', 'text': 'see'}}, 'image/png', {len(PNG)})"


async def test_a_call_from_code_is_a_call_of_the_session_with_its_parent(opens: Opens) -> None:
    async with opens(add) as session:
        call = await session.run("print('before')\nprint(tools.add(a=41))", title="two")
        assert call.text == "before\n42"
        (child,) = await children(session, call)
        assert (child.tool, child.text, child.status) == ("add", "42", "ok")
        mine = [event for event in await events(session) if event.call_id]
        assert [(event.call_id == child.id, event.kind) for event in mine] == [
            (False, "call_started"),
            (False, "output"),
            (True, "call_started"),
            (True, "call_finished"),
            (False, "output"),
            (False, "call_finished"),
        ]
        assert mine[2].data["parent_call_id"] == call.id
        assert mine[2].data["input"] == {"a": 41}
        assert (await session.find(child.id)).parent_call_id == call.id
        assert (await session.call("add", {"a": 1})).parent_call_id is None


def fails() -> None:
    raise ValueError("no such thing")


FAILURES = {
    "raises": (made(fails), "", "ValueError|ValueError: no such thing"),
    "says so": (
        made(lambda: ToolResult(content="not today", is_error=True)),
        "",
        "ToolError|not today",
    ),
    "is no result": (made(lambda: {1}), "", "ResultError|"),
    "is late": (made(trio.sleep_forever, timeout_s=0.05), "", "ToolTimeout|"),
    "wants another type": (
        made(add.handler),
        "a='x'",
        "InvalidInput|invalid input: a: Input should be a valid integer",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_what_fails_is_a_tool_error_with_the_reason(opens: Opens, case: str) -> None:
    failing, arguments, said = FAILURES[case]
    code = (
        f"try: tools.t({arguments})\n"
        "except ToolError as error: print(error.tool, error.type, error.message, sep='|')"
    )
    async with opens(failing) as session:
        call = await session.run(code)
        assert call.text.startswith(f"t|{said}")
        (child,) = await children(session, call)
        assert child.is_error
        uncaught = await session.run(f"tools.t({arguments})")
        assert uncaught.error is not None
        assert uncaught.error.ename == "ToolError"


async def test_threads_and_tasks_wait_at_once(opens: Opens) -> None:
    """None of them has its answer before all of them have asked."""
    here, all_here = [], trio.Event()

    async def meet(n: int) -> int:
        here.append(n)
        if len(here) == 6:
            all_here.set()
        await all_here.wait()
        return n

    code = (
        "import asyncio\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool:\n"
        "    futures = [pool.submit(lambda n=n: tools.t(n=n)) for n in range(3)]\n"
        "    got = await asyncio.gather(*[tools.t.call(n=n) for n in range(3, 6)])\n"
        "    print([future.result() for future in futures], got)"
    )
    async with opens(made(meet)) as session:
        call = await session.run(code)
        assert call.text == "[0, 1, 2] [3, 4, 5]"
        assert len(await children(session, call)) == 6


class Waits:
    """A tool that waits until it is told, or cancelled."""

    def __init__(self) -> None:
        self.asked, self.go, self.cancelled = trio.Event(), trio.Event(), trio.Event()

    async def __call__(self) -> str:
        self.asked.set()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return "gone"


async def test_an_interrupt_ends_the_wait_and_the_tool(opens: Opens) -> None:
    waits = Waits()
    async with opens(made(waits)) as session:
        run = await session.submit(CallRequest(input={"code": "x = 1\ntools.t()"}))
        await waits.asked.wait()
        assert (await session.interrupt()).delivered
        call = await run.wait()
        assert call.status == "interrupted"
        assert waits.cancelled.is_set()
        (child,) = await children(session, call)
        assert child.status == "cancelled"
        assert child.seq > call.seq
        assert (await session.run("x")).text == "=> 1"


async def test_a_cell_that_nobody_waits_for_cancels_its_tool(opens: Opens) -> None:
    waits = Waits()
    async with opens(made(waits)) as session, trio.open_nursery() as nursery:
        nursery.start_soon(session.run, "x = 1\ntools.t()")
        await waits.asked.wait()
        nursery.cancel_scope.cancel()
    assert waits.cancelled.is_set()


async def test_a_kernel_that_dies_while_its_tool_runs_ends_both(opens: Opens) -> None:
    waits = Waits()

    async def begun() -> None:
        await waits.asked.wait()

    code = (
        "import os, threading\n"
        "def die():\n"
        "    tools.begun()\n"
        "    os.kill(os.getpid(), 9)\n"
        "threading.Thread(target=die).start()\n"
        "tools.t()"
    )
    async with opens(made(waits), made(begun, name="begun")) as session:
        call = await session.run(code)
        assert (call.status, call.state_lost) == ("killed", True)
        assert waits.cancelled.is_set()
        assert [child.status for child in await children(session, call)] == ["ok", "cancelled"]
        waits.go.set()
        assert (await session.run("tools.t()")).text == "=> 'gone'"


async def test_closing_the_session_ends_a_cell_and_the_tool_that_it_waits_for(
    opens: Opens,
) -> None:
    waits = Waits()
    async with opens(made(waits)) as session:
        run = await session.submit(CallRequest(input={"code": "tools.t()"}))
        await waits.asked.wait()
        await session.stop_work()
        assert (await run.wait()).status == "killed"
        assert waits.cancelled.is_set()


async def test_a_call_of_a_thread_ends_with_the_cell_that_started_it(opens: Opens) -> None:
    waits = Waits()

    async def begun() -> None:
        await waits.asked.wait()

    code = (
        "import threading\n"
        "said = []\n"
        "def wait():\n"
        "    try: tools.t()\n"
        "    except ToolError as error: said.append(error.message)\n"
        "thread = threading.Thread(target=wait); thread.start()\n"
        "tools.begun()"
    )
    async with opens(made(waits), made(begun, name="begun")) as session:
        call = await session.run(code)
        assert call.status == "ok"
        assert waits.cancelled.is_set()
        assert [child.status for child in await children(session, call)] == ["ok", "cancelled"]
        assert (await session.run("thread.join(); said")).text == (
            "=> ['the cell that called it has ended']"
        )


async def test_only_the_main_threads_waits_stop_the_clock(opens: Opens) -> None:
    in_thread = (
        "import threading\n"
        "thread = threading.Thread(target=lambda: tools.add(a=1)); thread.start(); thread.join()"
    )
    async with opens(add) as session:
        assert (await session.run("tools.add(a=1)")).times.wait_s > 0
        assert (await session.run(in_thread)).times.wait_s == 0


async def test_a_tool_may_call_tools_but_not_the_kernel_that_waits_for_it(opens: Opens) -> None:
    found: list[Session] = []

    async def again(how: str) -> str:
        (session,) = found
        if how == "tool":
            return (await session.call("add", {"a": 1})).text
        return (await session.run("1 + 1")).text

    def in_thread() -> str:
        (session,) = found
        return trio.from_thread.run(session.run, "1 + 1").text

    code = (
        "print(tools.again(how='tool'))\n"
        "for call in (lambda: tools.again(how='repl'), tools.thread):\n"
        "    try: call()\n"
        "    except ToolError as error: print(error.type)"
    )
    async with opens(add, made(again, name="again"), made(in_thread, name="thread")) as session:
        found.append(session)
        call = await session.run(code)
        assert call.text == "2\nReentrantCallError\nReentrantCallError"
        (child, *_) = await children(session, call)
        (grandchild,) = await children(session, child)
        assert (grandchild.tool, grandchild.text) == ("add", "2")
        # Called directly, nothing waits for it: then it may use the kernel.
        assert (await session.call("again", {"how": "repl"})).text == "=> 2"


async def test_two_sessions_that_wait_for_each_other_are_told(opens: Opens) -> None:
    found: list[Session] = []

    async def other(n: int) -> str:
        return (await found[n].run(f"tools.t(n={1 - n})")).text

    async with opens(made(other)) as first, opens(made(other)) as second:
        found[:] = first, second
        assert "ReentrantCallError" in (await first.run("tools.t(n=1)")).text


async def test_a_sequential_tool_that_a_batchs_cell_calls_passes_its_barrier(
    opens: Opens,
) -> None:
    async with opens(made(lambda: "alone", execution="sequential")) as session:
        repl = CallRequest(input={"code": "tools.t()"})
        batch = await session.batch([repl, CallRequest(tool="t"), repl])
        assert [call.text for call in batch.calls] == ["=> 'alone'", "alone", "=> 'alone'"]


async def test_secrets_are_redacted_in_what_code_gets(make_config: MakeConfig) -> None:
    class Keeps:
        @staticmethod
        def code(opts: Any) -> str:
            return ""

        @staticmethod
        def description(opts: Any) -> str:
            return ""

    def tells(how: str) -> object:
        if how == "error":
            raise ValueError("hush-hush")
        return "hush-hush" if how == "text" else {"key": ["hush-hush"]}

    code = (
        "def show(how):\n"
        "    try: print(ascii(tools.t(how=how)).replace('hush', 'HUSH'))\n"
        "    except ToolError as error: print(error.message.replace('hush', 'HUSH'))\n"
        "show('text'); show('json'); show('error')"
    )
    keeps = (Keeps(), {"key": Secret("hush-hush")})
    tells_ = Extension(name="tells", tools=[made(tells)])
    async with (
        Coordinator(make_config()) as coordinator,
        coordinator.session(extensions=[keeps, tells_]) as session,
    ):
        assert (await session.run(code)).text == (
            "'[redacted]'\n{'key': ['[redacted]']}\nValueError: [redacted]"
        )


async def test_a_long_text_reaches_the_code_whole_and_others_pass_it(opens: Opens) -> None:
    code = (
        "import threading\n"
        "got = []\n"
        "thread = threading.Thread(target=lambda: got.append(tools.t())); thread.start()\n"
        "others = 0\n"
        "while not got: others += tools.add(a=0)\n"
        "thread.join(); print(len(got[0]), others > 0)"
    )
    async with opens(made(lambda: "é" * 5_000_000), add) as session:
        call = await session.run(code)
        assert call.text == "5000000 True"
        (child,) = [child for child in await children(session, call) if child.tool == "t"]
        assert child.output.truncated


async def test_tools_show_themselves_to_code_and_to_the_model(opens: Opens) -> None:
    def save(text: str, tags: list[str] | None = None) -> None:
        pass

    evil = 'Saves """+__import__("os").system("x")+"""\n{x} \'\\'
    saved = made(save, name="save-it", description=evil)
    prepared = made(save, name="mend", prepare=lambda raw: {"text": raw["txt"]})
    async with opens(add, saved, prepared) as session:
        assert (await session.run("dir(tools)")).text == "=> ['add', 'mend', 'save-it']"
        shown = (await session.run("print(tools)")).text
        assert "  add(*, a: int, b: int = 1)\n" in shown
        assert "  mend(*, text: str, tags: list[str] | None = None, **arguments)\n" in shown
        told = (await session.run("help(tools['save-it'])")).text
        assert 'Saves """+__import__("os").system("x")+"""' in told
        assert (await session.run("tools.mend(txt='x')")).status == "ok"
        description = await session.describe()
        assert "- tools.add(*, a: int, b: int = 1): Adds two numbers.\n" in description
        assert "- tools['save-it'](*, text: str" in description


async def test_a_session_without_tools_says_nothing_of_them(opens: Opens) -> None:
    async with opens(add), opens() as bare:
        assert (await bare.run("tools")).text == "=> <tools: none>"
        assert "tools." not in await bare.describe()


async def test_a_fresh_kernel_has_the_tools_too(opens: Opens) -> None:
    async with opens(add, lifetime="call") as session:
        for _ in range(2):
            assert (await session.run("tools.add(a=1)")).text == "=> 2"
    async with opens(add) as session:
        await session.run("tools.add(a=1)")
        await session.restart()
        assert (await session.run("tools.add(a=1)")).text == "=> 2"


async def test_a_thousand_calls_in_a_loop_are_each_in_the_log(opens: Opens) -> None:
    async with opens(add) as session:
        call = await session.run("sum(tools.add(a=n, b=0) for n in range(1000))")
        assert call.text == "=> 499500"
        assert len(await children(session, call)) == 1000


async def test_calls_of_one_cell_have_the_room_of_its_log(make_config: MakeConfig) -> None:
    config = make_config(max_log_bytes=200_000)
    async with (
        Coordinator(config) as coordinator,
        coordinator.session(extensions=[Extension(name="ours", tools=[add])]) as session,
    ):
        call = await session.run(
            "try:\n    while True: tools.add(a=1)\nexcept ToolError as error: print(error.type)"
        )
        assert call.text == "LogFull"
        assert 50 < len(await children(session, call)) < 200
        assert (await session.run("tools.add(a=1)")).text == "=> 2"


async def test_updates_of_a_called_tool_are_the_childs_events(opens: Opens) -> None:
    def handler(ctx: ToolContext) -> str:
        ctx.update({"at": 1})
        return ctx.call_id

    async with opens(made(handler)) as session:
        call = await session.run("tools.t()")
        (child,) = await children(session, call)
        assert call.text == f"=> {child.id!r}"
        assert [e.kind for e in await session.log.read(session.id, call_id=child.id)] == [
            "call_started",
            "update",
            "call_finished",
        ]


async def test_a_flood_of_requests_starts_a_bounded_number_and_ends_with_its_cell(
    opens: Opens,
) -> None:
    """Code that says what the guest says, without waiting for any answer."""
    waits = Waits()
    code = (
        "say = get_ipython().kernel.bridge._say\n"
        "for n in range(3_000):\n"
        '    say("tool_request", b\'{"id":%d,"name":"t","arguments":{}}\' % (n + 1), False)\n'
        "'the end'"
    )
    async with opens(made(waits), add) as session:
        call = await session.run(code)
        assert call.text == "=> 'the end'"
        ended = await children(session, call)
        assert 0 < len(ended) <= 256
        assert {child.status for child in ended} == {"cancelled"}
        assert (await session.run("tools.add(a=1)")).text == "=> 2"
