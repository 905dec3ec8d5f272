"""Odd source: it runs, or Python's own error says so at the right line."""

from __future__ import annotations

import pytest

from replsvc.session import Session


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\r\ny = 2\r\n1 / 0\r\n", 3),
        ("x = 1\ry = 2\r1 / 0", 3),
        ("if True:\n\tx = 1\n\t1 / 0", 3),
        ("x = 1\n\x0cy = 2\n1 / 0", 3),
        ("\ufeffx = 1\n1 / 0", 2),
        ("x = 'a\u2028b\u0085c'\n1 / 0", 2),
        ("\n\n\n1 / 0", 4),
        ("  x = 1\n  1 / 0", 2),
        ("x = (1 +\n2)\n1 / 0", 3),
        ("x = '''\n\n'''\n1 / 0", 4),
        ("%time x = 1\n!true\n1 / 0", 3),
        ("# -*- coding: latin-1 -*-\nx = 'é'\nassert len(x) == 1\n1 / 0", 4),
    ],
)
async def test_the_line_of_an_error_is_the_sources(session: Session, code: str, line: int) -> None:
    call = await session.run(code)
    assert call.error is not None
    assert call.error.ename == "ZeroDivisionError"
    assert f"Cell In[1], line {line}\n    1 / 0" in call.text


@pytest.mark.parametrize(
    ("code", "ename", "says"),
    [
        ("x = 1\0", "SyntaxError", "null bytes"),
        ("x = '\0'", "SyntaxError", "null bytes"),
        ("x = '\udc80'", "UnicodeEncodeError", "surrogates not allowed"),
        ("x = 1\n\x0by = 2", "SyntaxError", "Cell In[1], line 2"),
        ("if True:\n        x = 1\n\ty = 2", "TabError", "Cell In[1], line 3"),
        ("x\u00a0= 1", "SyntaxError", "U+00A0"),
        ("[" * 5_000, "SyntaxError", "too many nested parentheses"),
        ("x = 1 +", "SyntaxError", "Cell In[1], line 1"),
        ("for x in y:\n", "IndentationError", "Cell In[1], line 1"),
        ("return 1", "SyntaxError", "Cell In[1], line 1"),
    ],
)
async def test_what_python_refuses_is_pythons_own_error(
    session: Session, code: str, ename: str, says: str
) -> None:
    call = await session.run(code)
    assert call.error is not None
    assert (call.status, call.error.ename) == ("error", ename)
    assert says in call.text
    assert (await session.run("'alive'")).text == "=> 'alive'"


@pytest.mark.parametrize("code", ["", "\n", "  \n\t", "# only a comment", "pass", "'text';"])
async def test_nothing_to_show_is_said(session: Session, code: str) -> None:
    assert (await session.run(code)).text == "(no output)"


async def test_code_of_the_greatest_length_runs_to_its_last_line(session: Session) -> None:
    last = "\n'end', x"
    line = "x = 'some words that fill a line of sixty characters or more'\n"
    code = line * ((session.limits.max_code_bytes - len(last)) // len(line)) + last
    call = await session.run(code, timeout_s=60)
    assert call.text.startswith("=> ('end', 'some words")


async def test_a_line_of_the_greatest_length_runs(session: Session) -> None:
    code = f"x = '{'é' * ((session.limits.max_code_bytes - 20) // 2)}'; len(x)"
    assert (await session.run(code)).text == f"=> {(session.limits.max_code_bytes - 20) // 2}"


async def test_counts_are_the_kernels_own_of_user_cells_only(session: Session) -> None:
    counts = [
        (await session.run(code)).execution_count
        for code in ("1", "1 / 0", "x =", "%time 1", "!true", "print()")
    ]
    assert counts == [1, 2, 3, 4, 5, 6]
    await session.restart()
    assert (await session.run("1")).execution_count == 1


async def test_the_last_values_have_ipythons_names_from_the_first_cell_on(
    session: Session,
) -> None:
    assert (await session.run("5")).text == "=> 5"
    assert (await session.run("_ + 1")).text == "=> 6"
    assert (await session.run("_, __, Out, _1")).text == "=> (6, 5, {1: 5, 2: 6}, 5)"
    assert (await session.run("[name for name in dir() if name.startswith('x')]")).text == "=> []"
