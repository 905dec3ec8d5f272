"""What asks a person: whom it asks, and that nothing waits for an answer that can't come."""

from __future__ import annotations

from typing import Any

import pytest

THREAD = (
    "import threading\n"
    "def ask():\n"
    "    try: said.append(input('in a thread? '))\n"
    "    except BaseException as error: said.append(f'{type(error).__name__}: {error}')\n"
    "    finally: done.set()\n"
    "said, done = [], threading.Event()\n"
)


def answer(guest: Any, asked: Any, value: str, **fields: Any) -> None:
    guest.session.send(guest.stdin, "input_reply", {"value": value}, parent=asked, **fields)


def ask_and_answer(guest: Any, code: str, *answers: str) -> tuple[Any, list[str]]:
    started = guest.start(code, allow_stdin=True)
    prompts = []
    for value in answers:
        asked = guest.reply(guest.stdin)
        prompts.append(asked["content"]["prompt"])
        answer(guest, asked, value)
    return guest.finish(started), prompts


def test_a_secret_is_asked_for_as_one(guest: Any) -> None:
    started = guest.start("from getpass import getpass; len(getpass())", allow_stdin=True)
    asked = guest.reply(guest.stdin)
    assert asked["content"] == {"prompt": "Password: ", "password": True}
    answer(guest, asked, "secret")
    assert guest.finish(started).value == "6"


def test_questions_are_asked_one_after_another(guest: Any) -> None:
    ran, prompts = ask_and_answer(guest, "[input(f'{i}? ') for i in range(3)]", "a", "b", "c")
    assert prompts == ["0? ", "1? ", "2? "]
    assert ran.value == "['a', 'b', 'c']"


def test_a_breakpoint_is_a_talk(guest: Any) -> None:
    code = "def f(x):\n    y = x * 2\n    breakpoint()\n    return y\nf(21)"
    ran, prompts = ask_and_answer(guest, code, "p y", "y = 7", "c")
    assert set(prompts) == {"ipdb> "}
    assert b"42\n" in ran.out.whole()
    assert ran.value == "7"


def test_the_debugger_looks_into_the_last_error(guest: Any) -> None:
    guest.run("def f(n):\n    1 / n\nf(0)")
    ran, _ = ask_and_answer(guest, "%debug", "p 'n is', n", "q")
    assert ran.status == "ok"
    assert b"('n is', 0)" in ran.out.whole()


@pytest.mark.parametrize("code", ["breakpoint()\nx = 1", "def f(): breakpoint()\nf()", "%debug"])
def test_an_interrupt_at_the_debugger_strikes_the_code_below_it(guest: Any, code: str) -> None:
    guest.run("1/0")
    started = guest.start(code, allow_stdin=True)
    guest.reply(guest.stdin)
    assert guest.interrupt(started, b"").content["ename"] == "KeyboardInterrupt"
    assert guest.run("'x' in globals()").value == "False"


@pytest.mark.parametrize("way", ["input('? ')", "await asyncio.to_thread(input, '? ')"])
def test_an_awaiting_cell_may_ask(guest: Any, way: str) -> None:
    ran, _ = ask_and_answer(guest, f"import asyncio; await asyncio.sleep(0); {way}", "yes")
    assert ran.value == "'yes'"


def test_threads_ask_one_after_another(guest: Any) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool: got = list(pool.map(input, '1234'))\n"
        "got"
    )
    started = guest.start(code, allow_stdin=True)
    for _ in range(4):
        asked = guest.reply(guest.stdin)
        answer(guest, asked, "to " + asked["content"]["prompt"])
    assert guest.finish(started).value == "['to 1', 'to 2', 'to 3', 'to 4']"


def test_a_threads_question_ends_with_its_cell(guest: Any) -> None:
    started = guest.start(THREAD + "threading.Thread(target=ask).start()", allow_stdin=True)
    guest.reply(guest.stdin)
    assert guest.finish(started).status == "ok"
    assert "the cell that asked has ended" in guest.run("done.wait(); said").value
    ran, _ = ask_and_answer(guest, "input()", "and the next cell asks as ever")
    assert ran.value == "'and the next cell asks as ever'"


def test_a_thread_of_an_ended_cell_is_refused_while_another_cell_is_answered(guest: Any) -> None:
    guest.run(THREAD + "go = threading.Event()\n"
              "threading.Thread(target=lambda: (go.wait(), ask())).start()")  # fmt: skip
    ran = guest.run("go.set(); done.wait(); said", allow_stdin=True)
    assert "StdinNotImplementedError" in ran.value
    assert "thread whose cell has ended" in ran.value


@pytest.mark.parametrize(
    "child",
    [
        "import os\nif os.fork() == 0: ask()\nos.wait()",
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=ask)\n"
        "child.start(); child.join()",
    ],
    ids=["fork", "multiprocessing"],
)
def test_a_forked_child_is_refused_at_once(guest: Any, child: str) -> None:
    code = (
        "def ask():\n"
        "    try: input()\n"
        "    except Exception as error: print(type(error).__name__, error, flush=True)\n"
    )
    ran = guest.run(code + child, allow_stdin=True)
    printed = ran.out.until(b"\n")
    assert b"StdinNotImplementedError" in printed
    assert b"forked process" in printed


def test_a_signal_handler_that_asks_inside_a_question_is_refused(guest: Any) -> None:
    code = (
        "import os, signal, threading\n"
        "def ask(*_):\n"
        "    try: input('inner? ')\n"
        "    except Exception as error: print(error, flush=True)\n"
        "before = signal.signal(signal.SIGUSR1, ask)\n"
        "os.mkfifo('f')\n"
        "def strike(): open('f').read(); os.kill(os.getpid(), signal.SIGUSR1)\n"
        "threading.Thread(target=strike).start()\n"
        "input('outer? ')"
    )
    started = guest.start(code, allow_stdin=True)
    asked = guest.reply(guest.stdin)
    (guest.workspace / "f").write_text("now")
    started[1].until(b"is asking already")
    answer(guest, asked, "fine")
    assert guest.finish(started).value == "'fine'"


def test_an_answer_that_is_late_forged_or_to_another_question_is_dropped(guest: Any) -> None:
    ran, _ = ask_and_answer(guest, "first = input()", "1")
    assert ran.status == "ok"
    started = guest.start("input('second? ')", allow_stdin=True)
    asked = guest.reply(guest.stdin)
    answer(guest, {"header": {"msg_id": "another"}, "parent_header": {}}, "stray")
    key, guest.session.key = guest.session.key, b"wrong"
    answer(guest, asked, "forged")
    guest.session.key = key
    answer(guest, asked, "2")
    answer(guest, asked, "too late")
    assert guest.finish(started).value == "'2'"
    ran, _ = ask_and_answer(guest, "input('third? ')", "3")
    assert ran.value == "'3'"


def test_the_end_of_input_says_why_where_that_is_known(guest: Any) -> None:
    started = guest.start("input()", allow_stdin=True)
    asked = guest.reply(guest.stdin)
    answer(guest, asked, "\x04", metadata={"replsvc": {"why": "nobody was there"}})
    ran = guest.finish(started)
    assert (ran.content["ename"], ran.content["evalue"]) == ("EOFError", "nobody was there")


def test_a_client_that_does_not_listen_is_an_error(guest: Any) -> None:
    guest.stdin.close()
    ran = guest.run("input()", allow_stdin=True)
    assert "does not listen" in ran.content["evalue"]


def test_setup_code_asks_nobody_even_after_a_cell_that_could(guest: Any) -> None:
    ask_and_answer(guest, "input()", "x")
    ran = guest.setup("input()")
    assert ran.content["ename"] == "StdinNotImplementedError"
