"""execution.md rule 17: code that asks is answered, or told at once that nobody answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import trio

from replsvc import inputs
from replsvc.calls import Call, CallRequest, Event
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    AlreadyAnsweredError,
    ExtensionSetupError,
    InvalidInputError,
    QuestionNotFoundError,
)
from replsvc.extension.contract import Extension
from replsvc.run import Run
from replsvc.session import Session

ASKING = [
    "input('name? ')",
    "import getpass; getpass.getpass()",
    "breakpoint()\nx = 1",
    "import pdb; pdb.set_trace()\nx = 1",
    "%debug",
    "import asyncio; await asyncio.sleep(0); input()",
]


async def begin(session: Session, code: str, **fields: Any) -> Run:
    return await session.submit(CallRequest(input={"code": code}, stdin=True, **fields))


async def question(session: Session, run: Run, number: int = 1) -> Event:
    """The call's question of that number, once it is asked."""
    seen = 0
    with trio.fail_after(60):
        async for events in session.log.follow(session.id, call_id=run.id):
            for event in events:
                seen += event.kind == "input_request"
                if seen == number:
                    return event
    raise AssertionError("the session has ended")


async def talk(session: Session, code: str, *answers: str | None, **fields: Any) -> Call:
    """Run code that asks as often as there are answers."""
    run = await begin(session, code, **fields)
    for number, text in enumerate(answers, 1):
        asked = await question(session, run, number)
        await session.answer(asked.data["id"], text)
    return await run.wait()


async def events_of(session: Session, run: Run) -> list[Event]:
    return list(await session.log.read(session.id, call_id=run.id))


@pytest.mark.parametrize("code", ASKING)
async def test_asking_without_stdin_is_an_error_at_once(session: Session, code: str) -> None:
    await session.run("1 / 0")
    call = await session.run(code)
    assert call.error is not None
    assert call.error.ename == "StdinNotImplementedError"
    assert "nobody can in this session" in call.text


async def test_an_answer_goes_to_the_code(session: Session) -> None:
    run = await begin(session, "print('before')\nname = input('name? ')\nprint('hi', name)\nname")
    asked = await question(session, run)
    assert (asked.data["prompt"], asked.data["password"]) == ("name? ", False)
    assert run.snapshot().status == "waiting"
    assert (await session.info()).state == "busy"
    (listed,) = session.inputs()
    assert (listed.id, listed.call_id, listed.prompt) == (asked.data["id"], run.id, "name? ")
    await session.answer(listed.id, "Ada é")
    call = await run.wait()
    assert (call.status, call.text) == ("ok", "before\nhi Ada é\n=> 'Ada é'")
    assert session.inputs() == ()
    told = [
        (event.kind, event.data.get("status"), event.data.get("outcome"))
        for event in await events_of(session, run)
    ]
    assert told == [
        ("call_started", None, None),
        ("output", None, None),
        ("input_request", None, None),
        ("status", "waiting", None),
        ("status", "running", "answered"),
        ("output", None, None),
        ("output", None, None),
        ("call_finished", None, None),
    ]


async def test_a_password_is_in_no_event(session: Session) -> None:
    run = await begin(session, "import getpass; len(getpass.getpass('key? '))")
    asked = await question(session, run)
    assert (asked.data["prompt"], asked.data["password"]) == ("key? ", True)
    await session.answer(asked.data["id"], "hunter2hunter2")
    assert (await run.wait()).text == "=> 14"
    everything = [event.model_dump_json() for event in await events_of(session, run)]
    assert "hunter2" not in "".join(everything)


async def test_input_in_a_loop_asks_each_time(session: Session) -> None:
    call = await talk(session, "[input(f'{i}? ') for i in range(3)]", "a", "", "c")
    assert call.text == "=> ['a', '', 'c']"


async def test_a_breakpoint_is_talked_to(session: Session) -> None:
    code = "def f(x):\n    y = x * 2\n    breakpoint()\n    return y\nf(21)"
    call = await talk(session, code, "p y", "y = 7", "c")
    assert "42" in call.output.text
    assert call.result == {"text/plain": "7"}


async def test_the_debugger_looks_into_the_last_error(session: Session) -> None:
    await session.run("def f(n): return 1 / n\nf(0)")
    call = await talk(session, "%debug", "p 'n is', n", "q")
    assert (call.status, "('n is', 0)" in call.output.text) == ("ok", True)


@pytest.mark.parametrize("way", ["input('? ')", "await asyncio.to_thread(input, '? ')"])
async def test_an_awaiting_cell_may_ask(session: Session, way: str) -> None:
    call = await talk(session, f"import asyncio; await asyncio.sleep(0); {way}", "yes")
    assert call.text == "=> 'yes'"


async def test_output_goes_on_while_a_thread_waits_for_an_answer(session: Session) -> None:
    code = (
        "import os, threading\nos.mkfifo('f')\n"
        "thread = threading.Thread(target=lambda: print('got', input('? ')))\n"
        "thread.start()\n"
        "open('f').read()\nprint('main goes on', flush=True)\n"
        "thread.join()"
    )
    run = await begin(session, code)
    asked = await question(session, run)
    await trio.to_thread.run_sync((session._parts.workspace / "f").write_text, "now")
    seen = b""
    async for events in session.log.follow(session.id, call_id=run.id):
        seen += b"".join(event.blob or b"" for event in events)
        if b"main goes on" in seen:
            break
    await session.answer(asked.data["id"], "it")
    assert (await run.wait()).output.text == "main goes on\ngot it\n"


async def test_the_kernels_own_standard_input_stays_empty(session: Session) -> None:
    call = await session.run("import sys; sys.stdin.readline()", stdin="never read\n")
    assert call.text == "=> ''"


async def test_a_text_answers_line_by_line_and_then_input_ends(session: Session) -> None:
    code = "import getpass\nprint([input('a'), getpass.getpass(), input()])\ninput()"
    run = await session.submit(CallRequest(input={"code": code}, stdin="one\r\ntwo\nthree"))
    call = await run.wait()
    assert call.output.text == "['one', 'two', 'three']\n"
    assert call.error is not None
    assert call.error.ename == "EOFError"
    assert call.error.evalue == "the call's stdin has no more lines"
    assert {event.kind for event in await events_of(session, run)} == {
        "call_started",
        "output",
        "call_finished",
    }


async def test_a_text_talks_to_a_debugger(session: Session) -> None:
    call = await session.run("y = 20\nbreakpoint()\ny", stdin="p y + 1\ny = 5\nc\n")
    assert ("21" in call.output.text, call.result) == (True, {"text/plain": "5"})


async def test_no_answer_means_the_end_of_input(session: Session) -> None:
    call = await talk(session, "input()", None)
    assert call.error is not None
    assert (call.error.ename, call.status) == ("EOFError", "error")


async def test_the_clock_stands_still_while_the_code_waits(session: Session) -> None:
    run = await begin(session, "input()\nwhile True: pass", timeout_s=0.5)
    asked = await question(session, run)
    with trio.move_on_after(1):  # twice the call's whole budget
        await run.wait()
    assert run.status == "waiting"
    await session.answer(asked.data["id"], "go on")
    call = await run.wait()
    assert (call.status, call.state_lost) == ("timeout", False)
    assert call.times.wait_s >= 1
    assert 0.4 < call.times.execution_s < call.times.wait_s + 10


async def test_nobody_waits_for_ever(make_config: Callable[..., Config]) -> None:
    async with (
        Coordinator(make_config(max_wait_s=0.2)) as coordinator,
        coordinator.session() as session,
    ):
        run = await begin(session, "for i in range(3):\n    try: input()\n"
                          "    except EOFError as error: print(error)\n'went on'")  # fmt: skip
        call = await run.wait()
        assert (call.status, call.result) == ("ok", {"text/plain": "'went on'"})
        assert call.output.text == (
            "nobody answered within 0.2 s (max_wait_s), all waits together\n" * 3
        )
        asked = await question(session, run)
        assert asked.data["expires_at"] is not None
        with pytest.raises(AlreadyAnsweredError, match="was not answered in time"):
            await session.answer(asked.data["id"], "late")


@pytest.mark.parametrize("most", [None, 1e18])
async def test_an_operator_may_lift_the_bound_of_waiting(
    make_config: Callable[..., Config], most: float | None
) -> None:
    async with (
        Coordinator(make_config(max_wait_s=most)) as coordinator,
        coordinator.session() as session,
    ):
        run = await begin(session, "input()")
        asked = await question(session, run)
        assert asked.data["expires_at"] is None
        await session.answer(asked.data["id"], "x")
        assert (await run.wait()).status == "ok"


async def test_the_first_of_two_answers_counts(session: Session) -> None:
    run = await begin(session, "input()")
    asked = await question(session, run)
    lost: list[str] = []

    async def answer(text: str) -> None:
        try:
            await session.answer(asked.data["id"], text)
        except AlreadyAnsweredError:
            lost.append(text)

    async with trio.open_nursery() as nursery:
        for text in ("a", "b", "c"):
            nursery.start_soon(answer, text)
    assert len(lost) == 2
    (won,) = {"a", "b", "c"} - set(lost)
    assert (await run.wait()).text == f"=> {won!r}"
    with pytest.raises(AlreadyAnsweredError, match="was answered already"):
        await session.answer(asked.data["id"], "d")


async def test_an_answer_to_nothing_and_one_that_is_no_line_are_refused(session: Session) -> None:
    with pytest.raises(QuestionNotFoundError, match="input_never"):
        await session.answer("input_never", "x")
    for text in ("a\nb", "a\r", "\0", "\ud800", "x" * (64 * 1024 + 1)):
        with pytest.raises(InvalidInputError) as caught:
            await session.answer("input_never", text)
        assert text not in str(caught.value)
    for stdin in ("a\0b", "x" * (1024 * 1024 + 1)):
        with pytest.raises(InvalidInputError):
            await session.run("1", stdin=stdin)


async def test_an_interrupt_ends_the_question(session: Session) -> None:
    await session.run("x = 1")
    run = await begin(session, "input()")
    asked = await question(session, run)
    result = await session.interrupt()
    assert (result.delivered, result.still_running) == (True, False)
    call = await run.wait()
    assert (call.status, call.state_lost) == ("interrupted", False)
    assert call.error is not None
    assert call.error.ename == "KeyboardInterrupt"
    with pytest.raises(AlreadyAnsweredError, match="not waited for any more"):
        await session.answer(asked.data["id"], "late")
    assert (await session.run("x")).text == "=> 1"


async def test_an_interrupt_at_a_breakpoint_ends_the_cell(session: Session) -> None:
    run = await begin(session, "breakpoint()\nx = 1\nwhile True: pass")
    await question(session, run)
    result = await session.interrupt()
    assert (result.delivered, result.still_running) == (True, False)
    assert (await run.wait()).status == "interrupted"


async def test_code_that_takes_the_interrupt_goes_on_with_its_clock(session: Session) -> None:
    code = "try: input()\nexcept KeyboardInterrupt: print('taken', flush=True)\nwhile True: pass"
    run = await begin(session, code, timeout_s=1)
    await question(session, run)
    await session.interrupt()
    call = await run.wait()
    assert (call.status, call.output.text) == ("timeout", "taken\n")


async def test_an_answer_after_an_interrupt_goes_to_the_next_question(session: Session) -> None:
    code = "try: input('1? ')\nexcept KeyboardInterrupt: pass\ninput('2? ')"
    run = await begin(session, code)
    first = await question(session, run)
    await session.interrupt()
    second = await question(session, run, 2)
    with pytest.raises(AlreadyAnsweredError):
        await session.answer(first.data["id"], "one")
    await session.answer(second.data["id"], "two")
    assert (await run.wait()).text == "=> 'two'"


async def test_code_that_asks_again_when_it_is_ended_is_not_waited_for(session: Session) -> None:
    code = (
        "while True:\n    try: input()\n    except KeyboardInterrupt: pass\n"
        "    except EOFError as error: print(error); break"
    )
    run = await begin(session, code)
    await question(session, run)
    run.control.cancel()
    call = await run.wait()
    assert (call.status, call.state_lost) == ("cancelled", False)
    assert call.output.text == "the call is being ended\n"


async def test_closing_and_restarting_end_a_question_at_once(coordinator: Coordinator) -> None:
    async with coordinator.session() as session:
        run = await begin(session, "input()")
        await question(session, run)
        await session.restart()
        assert (await run.wait()).status == "killed"
        run = await begin(session, "input()")
        await question(session, run)
    call = await run.wait()
    assert call.cause is not None
    assert (call.status, call.cause.kind) == ("killed", "service_stop")


async def test_a_kernel_killed_while_it_waits_is_told(session: Session) -> None:
    run = await begin(session, "input()")
    asked = await question(session, run)
    current = session._slot.current
    assert current is not None
    assert current.kernel.info.pid is not None
    os.kill(current.kernel.info.pid, signal.SIGKILL)
    call = await run.wait()
    assert (call.status, call.state_lost) == ("killed", True)
    with pytest.raises(AlreadyAnsweredError):
        await session.answer(asked.data["id"], "late")
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_a_question_that_nobody_follows_is_dropped_after_the_grace(
    make_config: Callable[..., Config],
) -> None:
    async with (
        Coordinator(make_config(disconnect_grace_s=0)) as coordinator,
        coordinator.session() as session,
    ):
        run = await begin(session, "input()")
        async with session.following(run):
            await question(session, run)
        assert (await run.wait()).status == "cancelled"


async def test_a_detached_call_waits_for_whoever_comes(session: Session) -> None:
    run = await begin(session, "input()", detach=True)
    async with session.following(run):
        asked = await question(session, run)
    await session.answer(asked.data["id"], "here")
    assert (await run.wait()).text == "=> 'here'"


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_a_child_process_that_asks_is_told_at_once(session: Session, start: str) -> None:
    code = (
        "import multiprocessing, concurrent.futures as f\n"
        f"context = multiprocessing.get_context({start!r})\n"
        "with f.ProcessPoolExecutor(1, mp_context=context) as pool:\n"
        "    try: pool.submit(eval, 'input()').result()\n"
        "    except BaseException as error: print(type(error).__name__)"
    )
    run = await begin(session, code)
    call = await run.wait()
    expected = {"fork": "StdinNotImplementedError", "spawn": "EOFError"}[start]
    assert call.output.text == f"{expected}\n"


async def test_setup_code_that_asks_names_its_extension(coordinator: Coordinator) -> None:
    curious = Extension(code="name = input()", name="curious")
    with pytest.raises(ExtensionSetupError, match="StdinNotImplementedError") as caught:
        async with coordinator.session(extensions=[curious]):
            pass
    assert caught.value.extension == "curious"


async def test_a_secret_in_a_prompt_is_redacted(coordinator: Coordinator) -> None:
    from replsvc.extension.quote import quote
    from replsvc.extension.secret import Secret

    def body(key: str) -> None:
        def leak() -> str:
            return input(f"is it {key}? ")

    class Leaky:
        @staticmethod
        def code(opts: Any) -> Any:
            return quote(body, key=Secret("s3cr3t-value"))

        @staticmethod
        def description(opts: Any) -> None:
            return None

    async with coordinator.session(extensions=[Leaky]) as session:
        run = await begin(session, "leak()")
        asked = await question(session, run)
        assert asked.data["prompt"] == "is it [redacted]? "
        await session.answer(asked.data["id"], "no")
        assert (await run.wait()).status == "ok"


SPEAK = (
    "kernel = get_ipython().kernel\n"
    "parent, ident = kernel.get_parent('shell'), kernel._parent_ident['shell']\n"
    "def ask(parent=parent, prompt='? '):\n"
    "    content = {'prompt': prompt, 'password': False}\n"
    "    kernel.session.send(kernel.stdin_socket, 'input_request', content, parent, ident)\n"
    "def reply():\n"
    "    kernel.stdin_socket.poll()\n"
    "    return kernel.session.recv(kernel.stdin_socket)[1]['content']['value']\n"
)


async def test_a_kernel_that_asks_where_nobody_answers_gets_the_end_of_input(
    session: Session,
) -> None:
    call = await session.run(SPEAK + "ask(); reply()")
    assert call.text == r"=> '\x04'"


async def test_a_question_for_another_cell_is_not_heard(session: Session) -> None:
    run = await begin(session, SPEAK + "ask({'header': {'msg_id': 'other'}})\ninput('mine? ')")
    asked = await question(session, run)
    assert asked.data["prompt"] == "mine? "
    await session.answer(asked.data["id"], "yes")
    assert (await run.wait()).text == "=> 'yes'"


async def test_a_flood_of_questions_is_bounded_and_ends_with_its_cell(session: Session) -> None:
    run = await begin(session, SPEAK + "for i in range(6_000): ask(prompt='x' * 10_000)\n'over'")
    call = await run.wait()
    assert (call.status, call.text) == ("ok", "=> 'over'")
    asked = 0
    async for events in session.log.follow(session.id, call_id=run.id):
        prompts = [event.data["prompt"] for event in events if event.kind == "input_request"]
        asked += len(prompts)
        assert max(map(len, prompts), default=0) <= 4_000
        if events[-1].kind == "call_finished":
            break
    assert asked <= inputs.MAX_REQUESTS
    assert session.inputs() == ()
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_what_one_call_asks_is_counted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_REQUESTS", 2)
    call = await talk(session, "for i in range(3): print(input())", "a", "b")
    assert call.output.text == "a\nb\n"
    assert call.error is not None
    assert call.error.evalue == "a call can ask for input 2 times at most"
