"""How tools look to code in the kernel, and to the model that writes it."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from replsvc.extension.describe import TOOLS_SHOWN, BaseFacts, compose
from replsvc.extension.in_code import expression_of, signature_of, spec_of
from replsvc.extension.tools import Tool, tool


class Node(BaseModel):
    name: str
    children: list[Node] = Field(default_factory=list)


def _nothing() -> None: ...


def _plain(text: str, n: int = 3, ratio: float = 0.5, ok: bool = False) -> None: ...


def _composed(
    kind: Literal["a", "b"], tags: list[str], node: Node, extra: dict[str, int] | None = None
) -> None: ...


def _long(text: str = "x" * 100) -> None: ...


def _anything(value: Any, table: list[list[int]]) -> None: ...


def made(handler: Any, **fields: Any) -> Tool[Any]:
    return tool(handler=handler, **{"name": "t", "description": "Does it.", **fields})


@pytest.mark.parametrize(
    ("handler", "line"),
    [
        (_nothing, "t()"),
        (_plain, "t(*, text: str, n: int = 3, ratio: float = 0.5, ok: bool = False)"),
        (
            _composed,
            "t(*, kind: Literal['a', 'b'], tags: list[str], node: Node, extra: dict | None = None)",
        ),
        (_long, "t(*, text: str = ...)"),
        (_anything, "t(*, value: Any, table: list[list[int]])"),
    ],
)
def test_a_tools_line_reads_as_python_would_write_it(handler: Any, line: str) -> None:
    assert signature_of(made(handler)) == line
    assert spec_of(made(handler)).signature == line


def test_what_is_no_name_of_pythons_is_given_by_arguments() -> None:
    fields: dict[str, Any] = {"x": (int, Field(alias="class"))}
    model = create_model("Odd", **fields)

    def handler(value: Any) -> None: ...

    odd = made(handler, input=model, name="a-b")
    assert signature_of(odd) == "a-b(**arguments)"
    assert expression_of(odd) == "tools['a-b'](**arguments)"


def test_a_tool_that_prepares_its_input_takes_any_names() -> None:
    prepared = made(_plain, prepare=lambda raw: raw)
    assert signature_of(prepared).endswith(", **arguments)")
    assert spec_of(prepared).parameters["required"] == []
    assert spec_of(made(_plain)).parameters["required"] == ["text"]


def test_the_description_has_a_line_a_tool_within_its_budget() -> None:
    tools = [made(_plain, name=f"tool_{n}") for n in range(200)]
    told = compose(BaseFacts(), ["the fragment"], tools)
    assert told.index("the fragment") < told.index("- tools.tool_0(*, text: str")
    rest = told[told.index("the fragment") :]
    assert len(rest) < TOOLS_SHOWN + 500
    shown = rest.count("- tools.tool_")
    assert f"and {200 - shown} more: `dir(tools)` lists them" in rest
    assert compose(BaseFacts(), ["x"], []) == compose(BaseFacts(), ["x"])


def test_what_a_description_says_stays_in_its_line() -> None:
    odd = made(_nothing, description="\n  One.\nTwo\n" + "x" * 10_000)
    (line,) = (line for line in compose(BaseFacts(), (), [odd]).splitlines() if "tools.t(" in line)
    assert line == "- tools.t(): One."
