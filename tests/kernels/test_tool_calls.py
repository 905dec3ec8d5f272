"""Tools that code calls, as a kernel's host sees it: on the fake and on real kernels."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_rigs import fork_servers, isolated, opened

import kernel_python
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.stock import StockBackend
from replsvc_kernels.kernel import Cell, Kernel, KernelDied, LaunchSpec
from replsvc_kernels.messages import (
    ExecuteResult,
    Exit,
    Output,
    Stream,
    ToolRequest,
    ToolSpec,
    ToolWithdrawn,
)
from replsvc_kernels.testing import CallTool, Fail, FakeBackend, FakeKernel

ADD = ToolSpec(
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)
FETCH = ToolSpec("fetch", "Fetches.", {"type": "object", "properties": {}})

CALLS = "print('before'); print(tools.add(a=1, b=2))"
FETCHES = "got = tools.fetch()\nprint(got)"
CATCHES = (
    "try: tools.fetch()\nexcept ToolError as error: print(error, error.tool, error.type, sep='|')"
)
LEAVES = (
    "import threading\n"
    "thread = threading.Thread(target=lambda: said.append(str(outcome())), daemon=True)\n"
    "said = []\n"
    "def outcome():\n"
    "    try: return tools.fetch()\n"
    "    except ToolError as error: return error\n"
    "thread.start()\n"
    "tools.add(a=1, b=1); None"
)
NOT_OFFERED = "print('x'); tools.launch()"


def script(code: str) -> Iterable[Any]:
    def shown(value: object) -> list[Stream]:
        return [Stream("stdout", f"{value}\n".encode())]

    steps: dict[str, Iterable[Any]] = {
        CALLS: [*shown("before"), CallTool("add", {"a": 1, "b": 2}, shown)],
        FETCHES: [CallTool("fetch", then=shown)],
        LEAVES: [CallTool("fetch", background=True), CallTool("add", {"a": 1, "b": 1})],
        NOT_OFFERED: [*shown("x"), CallTool("launch")],
        "1 + 1": [ExecuteResult({"text/plain": "2"})],
        "1 / 0": [Fail("ZeroDivisionError")],
    }
    return steps[code]


Open = Callable[[], contextlib.AbstractAsyncContextManager[Kernel]]


@asynccontextmanager
async def opening(name: str, spec: LaunchSpec, runtime_dir: Path) -> AsyncIterator[Open]:
    if name == "forkserver":
        async with fork_servers() as servers:
            backend = servers.backend(kernel_python.path)
            yield lambda: opened(backend, isolated(servers, "s"))
    else:
        made = FakeBackend(script) if name == "fake" else ProcessBackend(str(runtime_dir))
        yield lambda: opened(made, spec)


def kernel_of(*names: str) -> Any:
    needs = pytest.mark.needs("userns", "pidns", "seccomp")
    params = [pytest.param(name, marks=needs if name == "forkserver" else ()) for name in names]

    @pytest.fixture(params=params)
    async def fixture(
        request: pytest.FixtureRequest, spec: LaunchSpec, runtime_dir: Path
    ) -> AsyncIterator[Kernel]:
        async with opening(request.param, spec, runtime_dir) as opener, opener() as kernel:
            yield kernel

    return fixture


kernel = kernel_of("fake", "process", "forkserver")
real_kernel = kernel_of("process", "forkserver")
Answer = Callable[[Cell, ToolRequest], Any]


async def added(cell: Cell, request: ToolRequest) -> None:
    assert await cell.answer_tool(
        request.id, result=request.arguments["a"] + request.arguments["b"]
    )


async def run(
    kernel: Kernel, code: str, answer: Answer = added, tools: Iterable[ToolSpec] = (ADD, FETCH)
) -> tuple[list[Output], Cell]:
    seen = []
    async with kernel.execute(code, cell="c", tools=tuple(tools)) as cell:
        async for output in cell:
            seen.append(output)
            if isinstance(output, ToolRequest):
                await answer(cell, output)
    return seen, cell


async def until_asked(outputs: AsyncIterator[Output]) -> ToolRequest:
    while not isinstance(output := await anext(outputs), ToolRequest):
        pass
    return output


def printed(outputs: Iterable[Output]) -> str:
    return b"".join(out.data for out in outputs if isinstance(out, Stream)).decode()


def failure(cell: Cell) -> tuple[str, str]:
    assert cell.reply is not None
    assert cell.reply.failure is not None
    return cell.reply.failure.ename, cell.reply.failure.evalue


async def test_code_gets_what_its_tool_gives_back(kernel: Kernel) -> None:
    seen, cell = await run(kernel, CALLS)
    assert printed(seen) == "before\n3\n"
    (request,) = (output for output in seen if isinstance(output, ToolRequest))
    assert (request.name, request.arguments, request.background) == ("add", {"a": 1, "b": 2}, False)
    # It stands where it was made, and is not withdrawn.
    assert printed(seen[: seen.index(request)]) == "before\n"
    assert not any(isinstance(output, ToolWithdrawn) for output in seen)
    assert cell.reply is not None
    assert cell.reply.status == "ok"


async def test_a_tools_error_is_an_exception_with_its_name(kernel: Kernel) -> None:
    async def refuse(cell: Cell, request: ToolRequest) -> None:
        assert await cell.answer_tool(request.id, error={"message": "no such number"})

    _, cell = await run(kernel, CALLS, refuse)
    assert failure(cell) == ("ToolError", "add: no such number")


async def test_an_interrupt_takes_a_call_back_and_reaches_the_code(kernel: Kernel) -> None:
    async with kernel.execute(FETCHES, cell="c", tools=(FETCH,)) as cell:
        outputs = aiter(cell)
        asked = await until_asked(outputs)
        assert await kernel.interrupt()
        assert [output async for output in outputs] == [ToolWithdrawn(asked.id)]
        assert not await cell.answer_tool(asked.id, result=1)
    assert failure(cell)[0] == "KeyboardInterrupt"
    assert (await run(kernel, "1 + 1"))[0]


async def test_a_call_is_answered_once(kernel: Kernel) -> None:
    async def answer(cell: Cell, request: ToolRequest) -> None:
        assert not await cell.answer_tool(request.id + 1, result="nobody's")
        assert await cell.answer_tool(request.id, result="first")
        assert not await cell.answer_tool(request.id, result="second")

    assert printed((await run(kernel, FETCHES, answer))[0]) == "first\n"


async def test_a_result_that_is_no_json_is_refused_and_can_be_given_again(kernel: Kernel) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]

    async def answer(cell: Cell, request: ToolRequest) -> None:
        for result in (float("nan"), b"bytes", cycle, deep, {1, 2}):
            with pytest.raises((ValueError, TypeError)):
                await cell.answer_tool(request.id, result=result)
        with pytest.raises(ValueError, match="message"):
            await cell.answer_tool(request.id, error={"type": "Nameless"})
        assert await cell.answer_tool(request.id, result="last")

    assert printed((await run(kernel, FETCHES, answer))[0]) == "last\n"


async def test_text_arrives_as_it_is(real_kernel: Kernel) -> None:
    odd = '\ud800é\x00\u2028""" + __import__(\'os\')'

    async def answer(cell: Cell, request: ToolRequest) -> None:
        assert await cell.answer_tool(request.id, result={odd: [odd, None, 1e300, 10**40]})

    seen, _ = await run(real_kernel, "print(ascii(tools.fetch()))", answer)
    assert printed(seen) == ascii({odd: [odd, None, 1e300, 10**40]}) + "\n"


async def test_a_kernel_killed_while_it_waits_for_a_tool_says_so(kernel: Kernel) -> None:
    async with kernel.execute(FETCHES, cell="c", tools=(FETCH,)) as cell:
        outputs = aiter(cell)
        asked = await until_asked(outputs)
        if isinstance(kernel, FakeKernel):
            kernel.die(Exit(signal=signal.SIGKILL))
        else:
            assert kernel.info.pid is not None
            os.kill(kernel.info.pid, signal.SIGKILL)
        assert await anext(outputs) == ToolWithdrawn(asked.id)
        with pytest.raises(KernelDied):
            await anext(outputs)
        assert not await cell.answer_tool(asked.id, result="too late")


async def test_a_call_that_nobody_answered_ends_with_its_cell(kernel: Kernel) -> None:
    asked: dict[str, ToolRequest] = {}
    left = []
    async with kernel.execute(LEAVES, cell="c", tools=(ADD, FETCH)) as cell:
        async for output in cell:
            if isinstance(output, ToolRequest):
                asked[output.name] = output
                if len(asked) == 2:
                    await cell.answer_tool(asked["add"].id, result=2)
            else:
                left.append(output)
        assert asked["fetch"].background
        assert left == [ToolWithdrawn(asked["fetch"].id)]
        assert cell.reply is not None
        assert cell.reply.status == "ok"
        assert not await cell.answer_tool(asked["fetch"].id, result="too late")
    if not isinstance(kernel, FakeKernel):
        seen, _ = await run(kernel, "thread.join(); print(said)")
        assert "the cell that called it has ended" in printed(seen)


async def test_what_is_not_offered_is_asked_of_nobody(kernel: Kernel) -> None:
    seen, cell = await run(kernel, NOT_OFFERED)
    assert printed(seen) == "x\n"
    assert not any(isinstance(output, ToolRequest) for output in seen)
    assert cell.reply is not None
    assert cell.reply.status == "error"


async def test_the_tools_of_a_cell_are_those_it_was_given(real_kernel: Kernel) -> None:
    kernel = real_kernel
    for tools, shown in (((), []), ((ADD,), ["add"]), ((ADD, FETCH), ["add", "fetch"]), ((), [])):
        for _ in range(2):
            assert printed((await run(kernel, "print(dir(tools))", tools=tools))[0]) == f"{shown}\n"


async def test_a_function_of_a_tool_that_is_gone_says_so(real_kernel: Kernel) -> None:
    await run(real_kernel, "kept = tools.fetch")
    _, cell = await run(real_kernel, "kept()", tools=[ADD])
    assert failure(cell) == ("ToolError", "fetch: this session offers it no more")


async def test_the_type_of_an_error_is_told(real_kernel: Kernel) -> None:
    async def refuse(cell: Cell, request: ToolRequest) -> None:
        await cell.answer_tool(request.id, error={"type": "Denied", "message": "not today"})

    assert printed((await run(real_kernel, CATCHES, refuse))[0]) == (
        "fetch: not today|fetch|Denied\n"
    )


async def test_a_thousand_calls_at_once_wait_for_their_turn(real_kernel: Kernel) -> None:
    waiting: list[int] = []
    most = 0

    async def answer(cell: Cell, request: ToolRequest) -> None:
        nonlocal most
        waiting.append(request.id)
        most = max(most, len(waiting))
        if len(waiting) == 250:
            while waiting:
                # the last one first: each finds who asked
                assert await cell.answer_tool(waiting.pop(), result=1)

    code = (
        "import asyncio\n"
        "sum(await asyncio.gather(*[tools.add.call(a=n, b=n) for n in range(1000)]))"
    )
    seen, _ = await run(real_kernel, code, answer)
    assert most == 250
    assert isinstance(seen[-1], ExecuteResult)
    assert seen[-1].data["text/plain"] == "1000"
    assert len({output.id for output in seen if isinstance(output, ToolRequest)}) == 1000


async def test_threads_get_their_own_results(real_kernel: Kernel) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(300) as pool:\n"
        "    print(sum(pool.map(lambda n: tools.add(a=n, b=n) == 2 * n, range(600))))"
    )
    seen, _ = await run(real_kernel, code)
    assert printed(seen) == "600\n"
    assert all(output.background for output in seen if isinstance(output, ToolRequest))


async def test_a_large_result_does_not_hold_up_others(real_kernel: Kernel) -> None:
    code = (
        "import threading\n"
        "got = []\n"
        "thread = threading.Thread(target=lambda: got.append(tools.fetch()))\n"
        "thread.start()\n"
        "others = 0\n"
        "while not got:\n"
        "    assert tools.add(a=1, b=1) == 2\n"
        "    others += 1\n"
        "thread.join()\n"
        "print(len(got[0]), got[0][:3], others > 2)"
    )
    async with trio.open_nursery() as nursery:

        async def answer(cell: Cell, request: ToolRequest) -> None:
            if request.name == "add":
                await added(cell, request)
            else:

                async def large() -> None:
                    assert await cell.answer_tool(request.id, result='"é\n' * 4_000_000)

                nursery.start_soon(large)

        seen, _ = await run(real_kernel, code, answer)
    assert printed(seen) == '12000000 "é\n True\n'


async def test_a_result_that_is_too_large_is_an_error(real_kernel: Kernel) -> None:
    async def answer(cell: Cell, request: ToolRequest) -> None:
        assert await cell.answer_tool(request.id, result="x" * (65 * 1024 * 1024))

    seen, _ = await run(real_kernel, CATCHES, answer)
    assert printed(seen) == (
        "fetch: its result is too large: 68.2 MB of at most 67.1|fetch|ResultTooLarge\n"
    )


async def test_an_answer_that_is_cancelled_on_its_way_ends_the_wait(real_kernel: Kernel) -> None:
    async def answer(cell: Cell, request: ToolRequest) -> None:
        with trio.CancelScope() as scope:
            calls = cell.tools  # type: ignore[attr-defined]
            send = calls._send

            async def first_only(content: Any, patient: bool) -> None:
                await send(content, patient)
                scope.cancel()
                await trio.lowlevel.checkpoint_if_cancelled()

            calls._send = first_only
            await cell.answer_tool(request.id, result="x" * 10_000_000)
        assert scope.cancelled_caught

    seen, _ = await run(real_kernel, CATCHES, answer)
    assert "its result was not sent to its end" in printed(seen)


async def test_lies_about_tools_change_nothing(real_kernel: Kernel) -> None:
    """Wrong types, names and parents, ids of nobody: what can be answered has an error."""
    code = (
        "say = get_ipython().kernel.bridge._say\n"
        "bridge = get_ipython().kernel.bridge\n"
        "for content in (b'{}', b'{\"id\": \"x\"}', b'{\"id\": -1}', b'{\"id\": true}',\n"
        '        b\'{"id": 1e300, "name": "add", "arguments": {}}\',\n'
        '        b\'{"id": 900, "name": "launch", "arguments": {}}\',\n'
        '        b\'{"id": 901, "name": ["add"], "arguments": {}}\',\n'
        '        b\'{"id": 902, "name": "add", "arguments": [1]}\'):\n'
        "    say('tool_request', content, False)\n"
        "    say('tool_withdrawn', content, False)\n"
        'parent, bridge._parent = bridge._parent, b\'{"msg_id": "another"}\'\n'
        'say(\'tool_request\', b\'{"id": 903, "name": "add", "arguments": {}}\', False)\n'
        "bridge._parent = parent\n"
        "print(tools.add(a=20, b=22))"
    )
    seen, cell = await run(real_kernel, code)
    assert printed(seen) == "42\n"
    assert len([output for output in seen if isinstance(output, ToolRequest)]) == 1
    assert cell.reply is not None
    assert cell.reply.status == "ok"


async def test_a_mark_whose_message_never_came_holds_up_no_call(real_kernel: Kernel) -> None:
    code = "print('before'); get_ipython().kernel.session.mark(); print(tools.add(a=1, b=2))"
    assert printed((await run(real_kernel, code))[0]) == "before\n3\n"


async def test_a_flood_of_requests_is_bounded(real_kernel: Kernel) -> None:
    code = (
        "say = get_ipython().kernel.bridge._say\n"
        "for n in range(20_000):\n"
        '    say("tool_request", b\'{"id":%d,"name":"fetch","arguments":{}}\' % (n + 1), False)\n'
        "'the end'"
    )
    async with real_kernel.execute(code, cell="c", tools=(FETCH,)) as cell:
        seen = [output async for output in cell]
    requests = [output for output in seen if isinstance(output, ToolRequest)]
    assert len(requests) == 256
    # Each has its end.
    assert seen[-256:] == [ToolWithdrawn(request.id) for request in requests]
    assert printed((await run(real_kernel, CALLS))[0]) == "before\n3\n"


async def test_a_kernel_without_guest_offers_none(spec: LaunchSpec, runtime_dir: Path) -> None:
    async with opened(StockBackend(str(runtime_dir)), spec) as kernel:
        _, cell = await run(kernel, CALLS)
        assert failure(cell)[0] == "NameError"
