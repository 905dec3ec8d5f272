"""What handlers return: what becomes of it, and what is refused with the place that is wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import BaseModel, field_serializer

from replsvc.extension.results import Checked, Image, ResultError, ToolResult, checked


class Point(BaseModel):
    x: float


class Unwritable(BaseModel):
    x: int = 1

    @field_serializer("x")
    def _x(self, x: int) -> int:
        raise RuntimeError(f"not {x}")


@pytest.mark.parametrize(
    ("value", "is_"),
    [
        (None, Checked()),
        ("text", Checked(texts=("text",))),
        (3, Checked(texts=("3",), value=3)),
        ({"a": (1, None)}, Checked(texts=('{"a": [1, null]}',), value={"a": [1, None]})),
        (Point(x=1), Checked(texts=('{"x": 1.0}',), value={"x": 1.0})),
        (ToolResult(content="t", details={"n": 1}), Checked(texts=("t",), details={"n": 1})),
        (ToolResult(content=["a", "b"], is_error=True), Checked(texts=("a", "b"), is_error=True)),
        (ToolResult(terminate=True), Checked(texts=("",), terminate=True)),
        (Image(b"x"), Checked(images=(Image(b"x"),))),
    ],
)
def test_a_result_is_text_images_and_a_value(value: Any, is_: Checked) -> None:
    assert checked(value) == is_


def cycle() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"x", "its result that is a bytes, which JSON can't say"),
        ({"a": [1, {2}]}, "its result.a[1] that is a set"),
        ({"a": {1: 2}}, "its result.a with a key that is no str, but a int"),
        ([math.nan], "its result[0] that is nan, which JSON can't say"),
        (Point(x=math.inf), "its result.x that is inf"),
        (1 << 2000, "its result that is too large a number"),
        (cycle(), "nested more than 100 deep, or in itself"),
        (["x" * 100] * 20_000, "more than 1,048,576 bytes of JSON"),
        ([[0] * 1000] * 2000, "more than 1,048,576 bytes of JSON"),
        ("x" * (64 * 1024 * 1024 + 1), "67,108,865 characters of text"),
        (Unwritable(), "a model that can't be written as JSON"),
        (ToolResult(content=3), "content that is a int"),  # type: ignore[arg-type]
        (ToolResult(content=["a", b"b"]), r"content[1] that is a bytes"),  # type: ignore[list-item]
        (ToolResult(details=[1]), "details that are a list"),  # type: ignore[arg-type]
        (ToolResult(details={"a": math.nan}), "details.a that is nan"),
        (Image("x"), "whose data is a str, not bytes"),  # type: ignore[arg-type]
        (Image(b"x", "image/tiff"), "of type 'image/tiff'"),  # type: ignore[arg-type]
        (ToolResult(content=[Image(b"x")] * 21), "21 images"),
    ],
)
def test_what_can_not_be_a_result_is_refused_with_its_place(value: Any, says: str) -> None:
    with pytest.raises(ResultError) as caught:
        checked(value)
    assert says in str(caught.value)


def test_a_result_of_an_output_model_is_made_into_one_or_refused() -> None:
    assert checked({"x": "2"}, Point).value == {"x": 2.0}
    with pytest.raises(ResultError, match="its output model refuses"):
        checked({"y": 2}, Point)
