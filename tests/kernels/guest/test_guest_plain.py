"""The short ways for plain cells and values give what IPython's own ways give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter
from IPython.core.inputtransformer2 import TransformerManager

from replsvc_kernels.guest.plain import QuickFormatter, is_plain

SHREDS = (
    *("a", "x = ", "1", "+", "%", "!", "?", "??", ",", ";", "/", "\n", "\n\n", " ", "    ", "\t"),
    *("=", "!=", "%=", "==", "(", ")", "[", "]", "{", "}", "\\\n", "#", "'", '"', '"""', ":"),
    *("if a:\n    ", "def f():\n    ", "%time ", "!ls", "%%cell\n", ">>> ", "... ", "In [1]: "),
    *("[ins] In [2]: ", "f'{a!r}'", "f'{a=}'", "\r", "\r\n", "\x0c", "\x1c", "\x85", "\u2028"),
    *("\x00", "\ud800", "é", "lambda: ", "await ", "# ?", "?#", "pass", "...", "@", "->", "`", "$"),
)
sources = st.lists(st.sampled_from(SHREDS), max_size=12).map("".join)


@settings(max_examples=1500)
@given(sources | st.text(max_size=30))
@example("a\n  \nb")
@example("if a:\n     if a:\n    a")
@example("x = \\\n  %time")
@example("'''\nwhat?\n'''")
@example("a != b\nprint('%s' % a, 3 % 2)")
def test_a_plain_cell_is_left_as_it_is_by_ipython(source: str) -> None:
    if is_plain(source):
        try:
            transformed = TransformerManager().transform_cell(source)
        except IndentationError:
            # It refuses what does not compile anyway: either way that is the cell's error.
            with pytest.raises(SyntaxError):
                compile(source, "<cell>", "exec")
        else:
            assert transformed == source.removesuffix("\n") + "\n"


@pytest.mark.parametrize(
    "source",
    [
        "1+1",
        "for i in range(3):\n    print('%d' % i)\n\n\nx = a != b",
        "s = 'is it?'  # so\nt = {'a': 1, **b}\n@c\ndef f(x, /, *, y): ...",
    ],
)
def test_common_cells_are_plain(source: str) -> None:
    assert is_plain(source)


LINES = ["pwd", "exit", "x", "x.y", "f x", ",f x", "1", "(exit)", "cells 1", "'%pwd'", "a = %pwd",
         "%pwd", "f?", "  1", "1\n", "1 \n\n", "x = (", "'", "x\x0b1", "twice"]  # fmt: skip


@pytest.mark.parametrize("autocall", [0, 2])
def test_lines_become_what_ipython_makes_of_them(guest: Any, autocall: int) -> None:
    guest.run("ip = get_ipython()\nf = len\nip.define_macro('twice', 'f(2)\\n')")
    guest.run(f"ip.autocall = {autocall}")
    pairs = f"[(ip.transform_cell(line), ip._transform_any(line)) for line in {LINES!r}]"
    assert guest.run(f"[ours for ours, theirs in {pairs} if ours != theirs]").value == "[]"


def test_a_transformation_that_a_cell_adds_is_applied_to_plain_cells(guest: Any) -> None:
    guest.run(
        "def shout(lines):\n    return [line.replace('quiet', 'LOUD') for line in lines]\n"
        "get_ipython().input_transformers_post.append(shout)"
    )
    assert guest.run("x = 1\n'quiet'").value == "'LOUD'"


class Rich:
    """Says everything that a formatter may ask."""

    def _repr_html_(self) -> str:
        return "<b>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/x": f"{include}{exclude}"}


class Named(str):
    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<i>{self}</i>"


VALUES: list[Any] = [1, -(10**30), 1.5, 1j, True, None, "a\nb'", b"\0", [1, [2]], (), {"a": {1}},
                     {1, 2}, frozenset(), range(3), Rich(), Named("n"), int, [Rich()], Ellipsis,
                     list(range(2000)), "x" * 5000]  # fmt: skip


def same(quick: QuickFormatter, stock: DisplayFormatter) -> None:
    for value in VALUES:
        for include, exclude in ((None, None), (["text/plain"], None), (None, ["text/plain"])):
            assert quick.format(value, include, exclude) == stock.format(value, include, exclude)


def test_values_show_as_in_ipython() -> None:
    same(QuickFormatter(), DisplayFormatter())


@pytest.mark.parametrize("mime", ["text/html", "text/plain", "image/png"])
def test_a_printer_that_somebody_registers_is_asked(mime: str) -> None:
    quick, stock = QuickFormatter(), DisplayFormatter()
    same(quick, stock)  # whatever is kept is kept now
    for formatter in (quick, stock):
        one = formatter.formatters[mime]
        shown: Any = (lambda _value: b"png") if mime == "image/png" else (lambda _value: "shown")
        text: Any = lambda _value, printer, _cycle: printer.text("shown")  # noqa: E731
        for kind in (int, dict, "builtins.frozenset"):
            one.for_type(kind, text if mime == "text/plain" else shown)
    same(quick, stock)
    for formatter in (quick, stock):
        formatter.formatters[mime].pop(int)
        formatter.mimebundle_formatter.for_type(object, lambda _value: {"text/x": "object"})
    same(quick, stock)
    for formatter in (quick, stock):
        formatter.mimebundle_formatter.type_printers = {}
        formatter.ipython_display_formatter.for_type(str, lambda _value: None)
    same(quick, stock)


def test_a_formatter_of_somebodys_own_is_asked() -> None:
    quick, stock = QuickFormatter(), DisplayFormatter()
    same(quick, stock)

    class Everything(type(stock.formatters["text/html"])):  # type: ignore[misc]
        def __call__(self, obj: Any) -> str:
            return f"all {type(obj)}"

    for formatter in (quick, stock):
        formatter.formatters["text/html"] = Everything()
    same(quick, stock)
