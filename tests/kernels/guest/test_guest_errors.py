"""Errors as a model reads them."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from carets import without_carets


def test_the_users_frames_are_shown_with_their_source(guest: Any) -> None:
    guest.run("def divide(n):\n    return 1 / n")
    ran = guest.run("x = 0\ndivide(x)")
    lines = ran.traceback.splitlines()
    assert lines[-3:-1] == ["    return 1 / n", "           ~~^~~"]
    assert without_carets(lines) == [
        "Traceback (most recent call last):",
        "  Cell In[2], line 2",
        "    divide(x)",
        "  Cell In[1], line 2, in divide",
        "    return 1 / n",
        "ZeroDivisionError: division by zero",
    ]
    (error,) = ran.of("error")
    assert error["content"]["traceback"] == ran.content["traceback"]
    assert error["content"]["evalue"] == ran.content["evalue"] == "division by zero"


def test_library_frames_are_counted_and_the_raising_one_is_shown(guest: Any) -> None:
    ran = guest.run("import json\njson.loads('{')")
    lines = without_carets(ran.content["traceback"])
    assert lines[1:5] == [
        "  Cell In[1], line 2",
        "    json.loads('{')",
        "  ... 2 frames in json ...",
        lines[4],
    ]
    assert lines[4].endswith("in raw_decode")
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")


def test_files_of_the_workspace_are_the_users_own(guest: Any) -> None:
    (guest.workspace / "helper.py").write_text("def call(f):\n    return f()\n")
    ran = guest.run("import helper\nhelper.call(lambda: 1/0)")
    assert "helper.py" in ran.traceback
    assert "    return f()" in ran.traceback
    assert "..." not in ran.traceback


def test_chained_causes_are_kept(guest: Any) -> None:
    text = guest.run(
        "try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e"
    ).traceback
    assert text.index("ZeroDivisionError: division by zero") < text.index("direct cause")
    assert text.endswith("KeyError: 'k'")


def test_groups_notes_and_their_members_are_shown(guest: Any) -> None:
    text = guest.run(
        "def bad(): 1/0\n"
        "found = []\n"
        "for f in (bad, lambda: int('x')):\n"
        "    try: f()\n"
        "    except Exception as e: found.append(e)\n"
        "group = ExceptionGroup('both', found); group.add_note('a note')\nraise group"
    ).traceback
    for piece in ("ExceptionGroup: both (2 sub-exceptions)", "a note", "ZeroDivisionError", "'x'"):
        assert piece in text
    assert text.count("Cell In[1]") == 5


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("x = (\n1 +", 1, "SyntaxError: '(' was never closed"),
        ("a = 1\nb = = 2", 2, "SyntaxError: invalid syntax"),
        ("if 1:\nx = 1", 2, "IndentationError: expected an indented block"),
        ("def f():\n  return 1\nreturn 2", 3, "SyntaxError: 'return' outside function"),
    ],
)
def test_a_syntax_error_has_its_line_and_no_machinery(
    guest: Any, code: str, line: int, message: str
) -> None:
    ran = guest.run(code)
    text = ran.traceback
    assert f"Cell In[1], line {line}" in text
    assert text.splitlines()[-1].startswith(message)
    assert "Traceback" not in text
    assert "File" not in text
    assert "ipython-input" not in ran.content["evalue"]


def test_no_frame_of_ours_or_of_ipythons_is_ever_shown(guest: Any) -> None:
    for code in ("%timeit -n1 -r1 1/0", "%%time\n1/0", "%run nothing.py", "%nosuch", "input()"):
        ran = guest.run(code)
        # One that the cell survives, as IPython 8's %%time has it, is printed instead.
        shown = ["\n".join(error["content"]["traceback"]) for error in ran.of("error")]
        (text,) = shown or [ran.err.whole().decode()]
        assert "Error" in text, text
        for word in ("interactiveshell", "ipykernel", "guest/", "execution.py"):
            assert word not in text, text


def test_a_long_recursion_is_told_in_a_few_lines(guest: Any) -> None:
    assert len(guest.run("def f(): f()\nf()").content["traceback"]) < 20
    both = guest.run("def a(): b()\ndef b(): a()\na()")
    assert both.content["ename"] == "RecursionError"
    assert len(both.content["traceback"]) < 150
    assert "frames left out" in both.traceback


def test_a_huge_message_is_cut_and_says_how_much(guest: Any) -> None:
    ran = guest.run("raise ValueError('a' * 100_000 + 'z')")
    assert len(ran.traceback) < 25_000
    assert "80013 of 100013 characters left out" in ran.traceback
    assert ran.traceback.endswith("z")
    assert len(ran.content["evalue"]) < 21_000
    many = guest.run("raise ValueError('\\n' * 5_000)")
    assert len(many.content["traceback"]) <= 1_000


@pytest.mark.parametrize(
    "code",
    [
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
        "class E(Exception):\n    __cause__ = property(lambda s: 1/0)\nraise E",
        "class M(type):\n    def __instancecheck__(s, o): 1/0\n"
        "class E(Exception, metaclass=M): pass\nraise E",
    ],
)
def test_an_exception_that_breaks_when_it_is_looked_at_is_still_reported(
    guest: Any, code: str
) -> None:
    ran = guest.run(code)
    assert ran.content["ename"] == "E"
    assert guest.run("1").value == "1"


def test_terminal_sequences_and_surrogates_are_made_plain(guest: Any) -> None:
    ran = guest.run("raise ValueError('\\x1b[31mred\\x1b[0m \\ud800')")
    assert ran.content["evalue"] == "red \\ud800"
    assert ran.traceback.endswith("ValueError: red \\ud800")


def test_a_value_that_can_not_be_shown_fails_its_cell(guest: Any) -> None:
    ran = guest.run("class R:\n    def __repr__(self): 1/0\nR()")
    assert ran.content["ename"] == "ZeroDivisionError"
    assert "in __repr__" in ran.traceback


def test_an_unknown_magic_is_one_line(guest: Any) -> None:
    ran = guest.run("%nosuch")
    assert ran.content["ename"] == "UsageError"
    (line,) = ran.content["traceback"]
    assert "%nosuch" in line


def test_an_error_of_a_child_that_was_forked_goes_to_stderr(guest: Any) -> None:
    ran = guest.run("import os\nif not os.fork(): 1/0\nos.wait()[1] >> 8")
    assert ran.value == "1"
    assert ran.of("error") == []
    assert b"ZeroDivisionError" in ran.err.data


def test_source_lines_stand_where_python_counts_them(guest: Any) -> None:
    ran = guest.run("x = 'a\x0cb\u2028c'\n\n1/0")
    assert "  Cell In[1], line 3\n    1/0" in ran.traceback
    guest.run("def f():\n    '\u2028'\n    return 1")
    assert guest.run("import inspect\nlen(inspect.getsource(f).split('\\n'))").value == "4"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="add_note came with Python 3.11")
def test_notes_are_shown_after_the_message(guest: Any) -> None:
    text = guest.run("e = ValueError('a'); e.add_note('noted'); raise e").traceback
    assert text.endswith("ValueError: a\nnoted")
