"""What a call's result says to a model."""

import sys

import pytest

from replsvc.output import clean_traceback, result_text, strip_ansi


@pytest.mark.parametrize(
    ("output", "value", "text"),
    [
        ("", None, "(no output)"),
        ("hi\n", None, "hi"),
        ("hi", None, "hi"),
        ("", "3", "=> 3"),
        ("hi\n", "3", "hi\n=> 3"),
        ("hi", "3", "hi\n=> 3"),
        ("", "   a\n0  1", "=>    a\n0  1"),
        ("\n", None, "(blank output)"),
        ("", "", "=> "),
        ("a\n\n", None, "a\n"),
    ],
)
def test_output_then_the_value(output: str, value: str | None, text: str) -> None:
    assert result_text(output, value, [], status="ok") == text


def test_an_error_comes_after_the_output() -> None:
    lines = ["Traceback (most recent call last):", '  File "cell 1", line 1', "ValueError: no"]
    text = result_text("before\n", None, lines, status="error")
    assert text == "before\n" + "\n".join(lines)


def test_an_ending_is_the_last_line_and_says_what_to_do() -> None:
    text = result_text(
        "1\n2\n",
        None,
        [],
        status="timeout",
        cause_message="interrupted after 2 s;\nnames are kept",
        notes=["log: c1"],
    )
    assert text == "1\n2\n[timeout: interrupted after 2 s; names are kept]\n[log: c1]"


@pytest.mark.parametrize(
    "status", ["timeout", "interrupted", "killed", "blocked", "denied", "cancelled"]
)
def test_every_ending_says_something_without_a_cause(status) -> None:  # type: ignore[no-untyped-def]
    text = result_text("", None, [], status=status)
    assert text.startswith(f"[{status}: ")
    assert ";" in text


def test_an_image_alone_is_not_called_no_output() -> None:
    assert result_text("", None, [], status="ok", has_rich=True) == ""
    assert result_text("", None, [], status="ok", notes=["x"]) == "(no output)\n[x]"


def raise_through_ipykernel() -> list[str]:
    from ipykernel.connect import get_connection_file
    from IPython.core.ultratb import VerboseTB

    try:
        get_connection_file()
    except RuntimeError:
        lines: list[str] = VerboseTB().structured_traceback(*sys.exc_info())
        return lines
    raise AssertionError


def test_the_kernels_own_frames_and_colours_are_taken_out() -> None:
    raw = raise_through_ipykernel()
    assert "ipykernel/connect.py" in strip_ansi("".join(raw))
    assert "\x1b" in "".join(raw)
    lines = clean_traceback(raw, "RuntimeError", "app not specified")
    text = "\n".join(lines)
    assert "ipykernel/connect.py" not in text
    assert "\x1b" not in text
    assert "in raise_through_ipykernel" in text
    assert "    get_connection_file()" in text
    assert lines[-1].startswith("RuntimeError: app not specified")


def test_a_note_about_hidden_frames_is_taken_out() -> None:
    lines = ["File x.py:1", "[... skipping hidden 1 frame]", "Error: bad"]
    assert clean_traceback(lines, "Error", "bad") == ("File x.py:1", "Error: bad")


def test_a_traceback_of_megabytes_is_cut_before_it_is_cleaned() -> None:
    lines = ["\x1b[" * 2_000_000, "Error: bad"]
    cut = clean_traceback(lines, "Error", "bad", max_bytes=2_000)
    assert sum(len(line) + 1 for line in cut) <= 2_001
    assert cut[-1] == "Error: bad"


def test_frames_of_plain_tracebacks_are_taken_out_and_causes_kept() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/site-packages/IPython/core/interactiveshell.py", line 3, in run_code',
        "    exec(code)",
        "    ^^^^",
        '  File "cell.py", line 1, in <module>',
        "    1/0",
        "ZeroDivisionError: division by zero",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        '  File "/site-packages/ipykernel/x.py", line 3, in go',
        "    go()",
        "KeyError: 'x'",
    ]
    assert clean_traceback(lines, "KeyError", "'x'") == (lines[0], *lines[4:10], lines[12])


def test_the_exception_is_named_when_the_kernel_does_not() -> None:
    assert clean_traceback([], "Error", "bad") == ("Error: bad",)
    assert clean_traceback(["bash: nope"], "", "") == ("bash: nope",)
    assert clean_traceback(["\x1b[31mError\x1b[0m: bad"], "Error", "bad") == ("Error: bad",)


def test_a_traceback_is_bounded_and_keeps_its_last_line() -> None:
    lines: list[object] = [f"frame {number}" for number in range(10_000)]
    lines[5] = None
    cut = clean_traceback(lines, "Error", "bad", max_bytes=500)
    assert sum(len(line) + 1 for line in cut) <= 501
    assert cut[0] == "frame 0"
    assert cut[-1] == "Error: bad"
