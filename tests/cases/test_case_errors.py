"""Errors as a model should read them, and the output that came before."""

from __future__ import annotations

import pytest

from replsvc.session import Session


async def test_output_before_an_error_is_kept(session: Session) -> None:
    call = await session.run("print('a'); 1/0")
    assert call.status == "error"
    assert call.output.text == "a\n"
    assert call.text.splitlines() == [
        "a",
        "Traceback (most recent call last):",
        "  Cell In[1], line 1",
        "    print('a'); 1/0",
        "                ~^~",
        "ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    ("how", "between"),
    [
        ("raise KeyError('k') from error", "The above exception was the direct cause"),
        ("raise KeyError('k')", "During handling of the above exception"),
    ],
)
async def test_chained_exceptions_are_all_told(session: Session, how: str, between: str) -> None:
    call = await session.run(f"try:\n    1 / 0\nexcept Exception as error:\n    {how}")
    first, said, second = call.text.partition(between)
    assert first.endswith("ZeroDivisionError: division by zero\n\n")
    assert said
    assert "\n\nTraceback (most recent call last):\n  Cell In[1], line 4\n" in second
    assert second.endswith("KeyError: 'k'")


async def test_an_exception_whose_cause_is_suppressed_stands_alone(session: Session) -> None:
    call = await session.run(
        "try:\n    1 / 0\nexcept Exception:\n    raise KeyError('k') from None"
    )
    assert "ZeroDivisionError" not in call.text


async def test_an_error_inside_a_library_shows_the_users_line_and_where_it_arose(
    session: Session,
) -> None:
    call = await session.run("import json\ndef load(text):\n    return json.loads(text)\nload('{')")
    lines = call.text.splitlines()
    assert lines[1:6] == [
        "  Cell In[1], line 4",
        "    load('{')",
        "  Cell In[1], line 3, in load",
        "    return json.loads(text)",
        "           ^^^^^^^^^^^^^^^^",
    ]
    assert lines[6] == "  ... 2 frames in json ..."
    assert "json/decoder.py" in lines[7]
    assert "IPython" not in call.text


@pytest.mark.needs("data")
async def test_frames_of_compiled_modules_are_a_librarys(session: Session) -> None:
    call = await session.run("import pandas\npandas.DataFrame({'a': [1]})['b']")
    assert call.text.endswith("KeyError: 'b'")
    assert call.text.count(".pyx") + call.text.count(".pxi") <= 1
    assert "frames in pandas ..." in call.text


async def test_a_thousand_errors_leave_nothing_in_what_is_printed_next(session: Session) -> None:
    for n in range(1_000):
        failed = await session.run(f"1/0  # {n}")
        assert failed.error is not None, n
        call = await session.run(f"print({n})")
        assert (call.status, call.text, call.error) == ("ok", str(n), None)


async def test_terminal_colours_are_taken_out_of_output_and_errors(session: Session) -> None:
    call = await session.run(r"print('\x1b[31mred\x1b[0m'); raise ValueError('\x1b[1mbold\x1b[0m')")
    assert call.text.startswith("red\nTraceback")
    assert call.text.endswith("ValueError: bold")


async def test_a_message_that_is_too_long_says_how_much_of_it_is_kept_nowhere(
    session: Session,
) -> None:
    call = await session.run("raise ValueError('x' * 5_000_000)")
    assert call.error is not None
    assert len(call.error.evalue) < 21_000
    assert call.output.truncated
    assert "4,980,000 characters of the error's message are kept nowhere" in call.text
    call = await session.run("raise ValueError('x' * 20_000)")
    assert call.error is not None
    assert call.error.evalue == "x" * 20_000
    assert not call.output.truncated
    assert "kept nowhere" not in call.text


@pytest.mark.parametrize(
    "fails",
    [
        "display(R())",
        "get_ipython().run_line_magic('run', 'bad.py')",
        "try: 1 / 0\nexcept ZeroDivisionError: get_ipython().showtraceback()",
        "get_ipython().run_cell('1 / 0') and None",
    ],
)
async def test_an_error_that_the_cell_survives_is_printed_and_the_cell_goes_on(
    session: Session, fails: str
) -> None:
    await session.run(
        "class R:\n    def __repr__(self): 1 / 0\nwith open('bad.py', 'w') as f: f.write('1 / 0')"
    )
    call = await session.run(f"{fails}\n5")
    assert call.status == "ok"
    lines = call.text.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "=> 5"]
    assert call.text.count("Traceback") == 1
    assert (await session.run("6")).text == "=> 6"


async def test_an_error_of_a_display_stands_in_its_place(session: Session) -> None:
    await session.run("class R:\n    def __repr__(self): 1 / 0")
    call = await session.run("print('a'); display(R()); print('b'); display(6)")
    lines = call.text.splitlines()
    assert lines[0] == "a"
    assert lines[-3:] == ["ZeroDivisionError: division by zero", "b", "6"]
