"""What a cell's code may do, and what its reply says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import measured


def test_the_last_expression_is_the_result_and_only_user_cells_are_counted(guest: Any) -> None:
    assert guest.run("x = 20").content["execution_count"] == 1
    assert guest.setup("y = 1").status == "ok"
    ran = guest.run("x + 1")
    assert (ran.value, ran.content["execution_count"]) == ("21", 2)


def test_of_many_values_the_oldest_are_let_go_without_a_word(guest: Any) -> None:
    guest.run("get_ipython().displayhook.cache_size = 10")
    ran = [guest.run(f"{number}") for number in range(30)]
    assert [one.value for one in ran] == [str(number) for number in range(30)]
    assert not any(b"cache" in one.err.whole() for one in ran)
    kept = guest.run(
        "sorted(Out) == sorted(int(n[1:]) for n in dir() if n[1:].isdigit()), len(Out)"
    )
    assert kept.value == "(True, 10)"


def test_a_reply_says_what_the_cell_used(guest: Any) -> None:
    usage = guest.run("sum(range(10**6))").reply["metadata"]["replsvc"]
    assert usage["cpu_s"] > 0
    assert usage["max_rss"] > 1_000_000


def test_a_cells_environment_is_set_for_it_and_then_restored_exactly(guest: Any) -> None:
    guest.run("import os; os.environ['KEPT'] = 'before'")
    hostile = {"NEW": "quote'\" $X \n\u00e9\udc80", "KEPT": ""}
    ran = guest.run(
        "got = [os.environ['NEW'], os.environ['KEPT']]\n"
        "os.environ['NEW'] = 'changed'; del os.environ['KEPT']",
        env=hostile,
    )
    assert ran.status == "ok"
    assert guest.run("ascii(got[0]), got[1]").value == repr((ascii(hostile["NEW"]), ""))
    assert guest.run("os.environ.get('NEW'), os.environ['KEPT']").value == "(None, 'before')"


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"A": "nul\0"}, {"": "x"}, {"B": "x", "A\0": "x"}])
def test_an_impossible_environment_is_refused_before_the_code_runs(guest: Any, env: Any) -> None:
    ran = guest.run("ran = True", env=env)
    assert ran.content["ename"] == "ValueError"
    assert "environment variable" in ran.content["evalue"]
    assert guest.run("'ran' in dir(), __import__('os').environ.get('B')").value == "(False, None)"


def test_top_level_await_works_and_its_tasks_go_on_in_later_cells(guest: Any) -> None:
    guest.run(
        "import asyncio\nwanted = asyncio.Event()\n"
        "async def later():\n    await wanted.wait()\n    return 'done'\n"
        "await asyncio.sleep(0)\ntask = asyncio.create_task(later())"
    )
    assert guest.run("wanted.set()\nawait task").value == "'done'"


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(f())",
        "asyncio.get_event_loop().run_until_complete(f())",
        "loop = asyncio.new_event_loop(); r = loop.run_until_complete(f()); loop.close(); r",
        "import anyio; anyio.run(f)",
        "import trio\nasync def g():\n    await trio.sleep(0)\n    return 7\ntrio.run(g)",
        "await asyncio.create_task(f())",
    ],
)
def test_event_loops_run_in_cells(guest: Any, code: str) -> None:
    guest.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7")
    assert guest.run(code).value == "7"
    assert guest.run("await f()").value == "7"


def test_a_task_made_in_a_cell_without_await_runs_in_the_next_that_awaits(guest: Any) -> None:
    guest.run("import asyncio\nasync def f():\n    return 7\ntask = asyncio.create_task(f())")
    assert guest.run("await task").value == "7"


def test_asyncio_run_under_an_await_says_what_to_write_instead(guest: Any) -> None:
    ran = guest.run("import asyncio\nawait asyncio.sleep(0)\nasyncio.run(asyncio.sleep(0))")
    assert ran.content["ename"] == "RuntimeError"
    assert "write `await ...` instead" in ran.traceback


@pytest.mark.parametrize(
    ("code", "evalue"),
    [("exit()", ""), ("quit()", ""), ("import sys; sys.exit(3)", "3"), ("exit(4)", "4")],
)
def test_exits_are_results_and_the_kernel_lives(guest: Any, code: str, evalue: str) -> None:
    ran = guest.run("x = 1\n" + code)
    assert (ran.content["ename"], ran.content["evalue"]) == ("SystemExit", evalue)
    assert ran.content["payload"] == []
    assert guest.run("x").value == "1"


@pytest.mark.parametrize(
    "code",
    [
        "input('name? ')",
        "import getpass; getpass.getpass()",
        "breakpoint()",
        "import pdb; pdb.set_trace()\nx = 1",
        "import pdb; pdb.Pdb().set_trace()\nx = 1",
        "%debug",
        "import code; code.interact()",
    ],
)
def test_whatever_asks_a_person_fails_at_once_where_nobody_answers(guest: Any, code: str) -> None:
    guest.run("1/0")
    ran = guest.run(code)
    assert ran.content["ename"] == "StdinNotImplementedError"
    assert "nobody can in this session" in ran.content["evalue"]
    assert guest.run("1").value == "1"


def test_input_asks_a_client_that_answers(guest: Any) -> None:
    started = guest.start("input('name? ')", allow_stdin=True)
    asked = guest.reply(guest.stdin)
    assert asked["content"] == {"prompt": "name? ", "password": False}
    guest.session.send(guest.stdin, "input_reply", {"value": "Ada"}, parent=asked)
    assert guest.finish(started).value == "'Ada'"


def test_standard_input_is_empty_for_the_kernel_and_its_children(guest: Any) -> None:
    assert guest.run("import sys, subprocess\nsys.stdin.read()").value == "''"
    ran = guest.run("!cat; echo rest")
    assert ran.out.whole() == b"rest\n"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("\n\n  \n1/0", 4),
        ("x = 1\r\n\r\n1/0\r\n", 3),
        ("\ufeffx = 1\n1/0", 2),
        ("a = 1\x0c\nb = '\u2028%ls'\n\x0cc = '\x85\x1c!ls'\n1/0", 4),
        ("if 1:\n\tx = 1\n\t1/0", 3),
        ("\n%time x = 1\n!true\n1/0", 4),
        ("\u00fcber = '\U0001f600'\n1/0", 2),
    ],
)
def test_lines_are_counted_from_one_whatever_the_code_contains(
    guest: Any, code: str, line: int
) -> None:
    ran = guest.run(code)
    assert ran.content["ename"] == "ZeroDivisionError"
    assert f"  Cell In[1], line {line}\n    1/0\n" in ran.traceback


@pytest.mark.parametrize(
    ("code", "ename"),
    [("x = '\0'", "SyntaxError"), ("x = '\ud800'", "UnicodeEncodeError"), ("\t x\n y", "Inden")],
)
def test_code_that_python_refuses_gets_pythons_own_error(guest: Any, code: str, ename: str) -> None:
    ran = guest.run(code)
    assert ran.content["ename"].startswith(ename)
    assert guest.run("1").value == "1"


def test_odd_characters_in_strings_survive(guest: Any) -> None:
    guest.run("x = 'a\u2028%ls\x0cb\x85!c\x1d'")
    assert guest.run("ascii(x)").value == repr(ascii("a\u2028%ls\x0cb\x85!c\x1d"))


def test_our_own_packages_can_not_be_imported(guest: Any) -> None:
    for name in ("replsvc", "replsvc_kernels.messages", "replsvc_extensions"):
        ran = guest.run(f"import {name}")
        assert ran.content["ename"] == "ModuleNotFoundError"
    # an environment of their own may well lie below the project's root
    root = Path(__file__).parents[3]
    ours = [str(root), *(str(root / name) for name in ("kernels", "extensions"))]
    assert guest.run(f"import sys\n[p for p in sys.path if p in {ours!r}]").value == "[]"


def test_user_code_finds_the_path_and_arguments_of_a_notebook(guest: Any) -> None:
    (guest.workspace / "mine.py").write_text("here = True")
    assert guest.run("import sys, mine\nsys.path[0], sys.argv, mine.here").value == (
        "('', [''], True)"
    )


def test_nothing_of_the_workspace_is_imported_or_written_before_a_cell(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    trap = "open('trapped', 'w').close()"
    for name in ("sitecustomize", "usercustomize", "zmq", "json", "IPython", "ipykernel", "random"):
        (tmp_path / f"{name}.py").write_text(trap)
    startup = tmp_path / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text(trap)
    (startup.parent / "ipython_config.py").write_text(trap)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    guest = launch()
    assert guest.run("1 + 1").value == "2"
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_the_environment_is_left_as_it_was_declared(guest: Any) -> None:
    # LC_CTYPE is Python's own doing, on some systems; coverage's is the test run's
    others = {"LC_CTYPE", measured.VARIABLE}
    names = guest.run(f"import os; sorted(set(os.environ) - {others})").value
    declared = ["HOME", "LANG", "NO_COLOR", "PATH", "PYTHONNOUSERSITE", "TERM"]
    assert names == repr(sorted([*declared, "MPLBACKEND"]))
    assert guest.run("os.environ['TERM'], os.environ['NO_COLOR']").value == "('dumb', '1')"


def test_ipykernel_missing_is_said_with_the_command_that_helps(
    launch: Callable[..., Any], tmp_path: Path
) -> None:
    bare = tmp_path / "bare.sh"
    # -S: no site-packages, so none of them can be imported
    bare.write_text(f'#!/bin/sh\nexec {os.path.realpath("/proc/self/exe")} -S "$@"\n')
    bare.chmod(0o755)
    guest = launch(python=str(bare))
    assert guest.ready["ready"] is False
    assert "-m pip install 'ipykernel>=6.29,<8'" in guest.ready["error"]
    assert guest.process.wait() == 3


def test_requests_without_pipes_print_as_jupyters_clients_expect(guest: Any) -> None:
    message = guest.request("execute_request", {"code": "print('plain client')", "silent": False})
    (stream,) = (m for m in guest.until_idle(message) if m["msg_type"] == "stream")
    assert stream["content"] == {"name": "stdout", "text": "plain client\n"}
    assert guest.reply()["content"]["status"] == "ok"
    assert guest.orphan[0].data == b""


def test_pipes_that_were_passed_by_are_an_error_and_not_a_hang(guest: Any) -> None:
    guest.run("1")
    guest.send_pair(5)
    message = guest.request(
        "execute_request", {"code": "ran = 1", "silent": False}, {"replsvc": {"pair": 3}}
    )
    guest.until_idle(message)
    assert guest.reply()["content"]["ename"] == "PairLost"
