"""Setup code of extensions: a module each, names for the user, errors that point at the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carets import without_carets


def test_public_names_are_the_users_and_private_ones_are_not(guest: Any) -> None:
    ran = guest.setup("import json\n_hidden = 1\ndef f(): return _hidden\nshown = 2")
    assert ran.content["status"] == "ok"
    assert ran.content["names"] == ["f", "json", "shown"]
    assert ran.content["duration_s"] >= 0
    assert guest.run("f(), shown, json.__name__, '_hidden' in globals()").value == (
        "(1, 2, 'json', False)"
    )


def test_what_setup_prints_goes_to_its_own_pipes(guest: Any) -> None:
    ran = guest.setup("import os\nprint('setting up'); os.system('echo child')")
    assert ran.out.whole() == b"setting up\nchild\n"


def test_setup_leaves_history_and_count_alone(guest: Any) -> None:
    guest.setup("x = 1")
    assert guest.run("len(In), x").value == "(2, 1)"


def test_later_extensions_see_the_names_of_earlier_ones(guest: Any) -> None:
    guest.setup("def base(): return 1\n_own = 1", "a")
    ran = guest.setup("def twice(): return base() * 2\nsaw = '_own' in globals()", "b")
    assert ran.content["names"] == ["saw", "twice"]
    assert guest.run("twice(), saw").value == "(2, False)"


def test_a_functions_body_runs_with_its_values_which_stay_private(guest: Any) -> None:
    source = (
        "def other(): pass\n"
        "def body(key, rows, kept):\n"
        "    'Documented.'\n"
        "    global counter\n"
        "    counter = len(rows)\n"
        "    kept = kept + 1\n"
        "    def show():\n"
        "        return key\n"
    )
    hostile = "quote'\"\n{}\\\u2028"
    values = {"key": repr(hostile), "rows": "[1, (2, None), {'a': b'x'}]", "kept": "1"}
    ran = guest.setup(source, body_of="body", values=values)
    assert ran.content["names"] == ["counter", "kept", "show"]
    assert guest.run("show(), counter, kept, 'key' in globals()").value == (
        f"({hostile!r}, 3, 2, False)"
    )
    assert guest.run("import sys; sys.modules[show.__module__].__doc__").value == "'Documented.'"


def test_a_value_that_is_no_literal_is_refused_and_not_evaluated(guest: Any) -> None:
    ran = guest.setup("pass", values={"x": "print('ran')"})
    assert ran.content["ename"] == "SetupSourceError"
    assert ran.out.whole() == b""


def test_what_it_defines_can_be_pickled_inspected_and_found(guest: Any) -> None:
    guest.setup(
        "class Point:\n    def __init__(self, x): self.x = x\n\ndef f():\n    return 1", "geo"
    )
    assert guest.run("import inspect\ninspect.getsource(f)").value == repr(
        "def f():\n    return 1\n"
    )
    assert guest.run("import pickle\npickle.loads(pickle.dumps(Point(3))).x").value == "3"
    assert guest.run("Point.__module__, f.__code__.co_filename").value == (
        "('replsvc_setup.geo', '<extension geo>')"
    )


def test_an_error_points_at_the_extensions_own_line_and_source(guest: Any) -> None:
    ran = guest.setup(
        "def fetch(n):\n    return 1 / n\n\nfetch(0)", file="/nowhere/weather.py", first_line=40
    )
    lines = ran.content["traceback"]
    assert lines[-3:-1] == ["    return 1 / n", "           ~~^~~"]
    assert without_carets(lines) == [
        "Traceback (most recent call last):",
        '  File "/nowhere/weather.py", line 43, in <module>',
        "    fetch(0)",
        '  File "/nowhere/weather.py", line 41, in fetch',
        "    return 1 / n",
        "ZeroDivisionError: division by zero",
    ]
    assert guest.run("'fetch' in globals()").value == "False"


def test_a_users_error_inside_an_extension_shows_the_extensions_line(guest: Any) -> None:
    guest.setup("def fetch(n):\n    return 1 / n", file="/nowhere/w.py", first_line=7)
    ran = guest.run("fetch(0)")
    assert '  File "/nowhere/w.py", line 8, in fetch\n    return 1 / n' in ran.traceback


def test_inline_code_is_shown_with_its_own_source(guest: Any) -> None:
    guest.setup("def fetch(n):\n    return 1 / n", "inline[0]")
    ran = guest.run("fetch(0)")
    assert '  File "<extension inline[0]>", line 2, in fetch\n    return 1 / n' in ran.traceback


def test_a_nested_function_keeps_the_lines_and_columns_of_its_file(
    guest: Any, tmp_path: Path
) -> None:
    text = (
        "class Weather:\n    @staticmethod\n    def code(opts):\n        def body(key):\n"
        "            value = 1\n            raise KeyError(\n                key)\n"
    )
    file = tmp_path / "weather.py"
    file.write_text(text)
    nested = "".join(text.splitlines(keepends=True)[3:])
    fields = {"body_of": "body", "values": {"key": "'k'"}, "file": str(file), "first_line": 4}
    ran = guest.setup(nested, **fields)
    assert f'  File "{file}", line 6, in <module>' in ran.traceback
    assert "    raise KeyError(" in ran.traceback


def test_two_pieces_of_one_unreadable_file_both_show_their_source(guest: Any) -> None:
    guest.setup("def a(): 1/0", "a", file="/nowhere/x.py", first_line=10)
    guest.setup("def b(): a()", "b", file="/nowhere/x.py", first_line=3)
    text = guest.run("b()").traceback
    assert "line 3, in b\n    def b(): a()" in text
    assert "line 10, in a\n    def a(): 1/0" in text


def test_syntax_that_this_python_does_not_know_names_version_file_and_line(guest: Any) -> None:
    for body_of, source in ((None, "x = 1\ny = = 2"), ("f", "def f():\n    y = = 2")):
        ran = guest.setup(source, file="/nowhere/w.py", first_line=10, body_of=body_of)
        assert ran.content["ename"] == "SyntaxError"
        assert ran.content["evalue"].startswith("Python 3.")
        assert "can't compile /nowhere/w.py, line 11: invalid syntax" in ran.content["evalue"]
        assert "y = = 2" in ran.traceback


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        ("import sys; sys.exit(3)", "SystemExit"),
        ("exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("class Odd(BaseException): pass\nraise Odd", "Odd"),
        ("await x", "SyntaxError"),
        ("input()", "StdinNotImplementedError"),
        ("breakpoint()", "StdinNotImplementedError"),
    ],
)
def test_however_setup_ends_it_is_a_reply(guest: Any, code: str, ename: str) -> None:
    ran = guest.setup(code)
    assert ran.content["status"] == "error"
    assert ran.content["ename"] == ename
    for word in ("guest/", "ipykernel", "interactiveshell"):
        assert word not in ran.traceback
    assert guest.run("1").value == "1"


def test_a_setup_that_hangs_can_be_interrupted(guest: Any) -> None:
    guest.pair += 1
    pipes = guest.send_pair(guest.pair)
    content = {"name": "a", "source": "print('on')\nwhile True: pass", "file": "<a>"}
    message = guest.request("setup_request", {**content, "pair": guest.pair})
    ran = guest.interrupt((message, *pipes), b"on\n")
    assert ran.content["ename"] == "KeyboardInterrupt"


def test_two_extensions_that_bind_one_name_conflict_and_nothing_is_copied(guest: Any) -> None:
    guest.setup("fetch = 1", "weather")
    ran = guest.setup("other = 1\nfetch = 2", "news")
    assert ran.content["ename"] == "SetupNameConflict"
    assert "'weather' and 'news' both bind 'fetch'" in ran.content["evalue"]
    assert guest.run("fetch, 'other' in globals()").value == "(1, False)"


@pytest.mark.parametrize("name", ["tools", "get_ipython", "In", "Out", "exit", "quit", "display"])
def test_reserved_names_are_a_conflict(guest: Any, name: str) -> None:
    ran = guest.setup(f"{name} = None", "greedy")
    assert ran.content["ename"] == "SetupNameConflict"
    assert "'greedy'" in ran.content["evalue"]
    assert repr(name) in ran.content["evalue"]


def test_the_same_object_under_a_taken_name_is_no_conflict(guest: Any) -> None:
    guest.setup("import json", "a")
    code = "import json\nfrom IPython import get_ipython\nfrom IPython.display import display"
    ran = guest.setup(code, "b")
    assert ran.content["status"] == "ok"
    assert guest.run("type(get_ipython()).__name__").value == "'GuestShell'"


def test_running_a_setup_again_replaces_its_module_and_names(guest: Any) -> None:
    guest.setup("a = 1\nb = 1\nc = 1", "ext")
    guest.run("c = 'mine'")
    assert guest.setup("a = 2", "ext").content["names"] == ["a"]
    assert guest.run("a, 'b' in globals(), c").value == "(2, False, 'mine')"
    guest.setup("a = 3\n1/0", "ext")
    assert guest.run("import replsvc_setup\na, replsvc_setup.ext.a").value == "(2, 2)"


def test_event_loops_run_in_setup(guest: Any) -> None:
    ran = guest.setup("import asyncio\nasync def f(): return 3\nx = asyncio.run(f())")
    assert ran.content["status"] == "ok"
    assert guest.run("x").value == "3"


def test_a_request_without_its_fields_is_refused(guest: Any) -> None:
    message = guest.request("setup_request", {"name": "x"})
    guest.until_idle(message)
    assert guest.reply()["content"]["ename"] == "SetupSourceError"
