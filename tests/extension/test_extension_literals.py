"""Which values have a literal form."""

from __future__ import annotations

import ast
import collections
import decimal
import enum
import types
from typing import Any, NamedTuple

import pytest

from replsvc.extension.literals import MAX_DEPTH, NoLiteralError, literal
from replsvc.extension.secret import Secret


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Pair(NamedTuple):
    left: int


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


CYCLE: list[Any] = [1]
CYCLE.append({"back": CYCLE})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "float nan has no literal form"),
        ([float("-inf")], "at [0]: float -inf has no literal form"),
        (complex(0, float("inf")), "complex"),
        (frozenset({1}), "frozenset has no literal form (pass set(...) of it)"),
        (bytearray(b""), "bytearray has no literal form"),
        (Colour.RED, "Colour has no literal form (pass int(...) of it)"),
        (Text("x"), "Text has no literal form (pass str(...) of it)"),
        (Pair(1), "Pair has no literal form (pass tuple(...) of it)"),
        (collections.OrderedDict(), "collections.OrderedDict has no literal form (pass dict(...)"),
        (types.MappingProxyType({}), "mappingproxy has no literal form (pass dict(...) of it)"),
        (decimal.Decimal(1), "decimal.Decimal has no literal form"),
        (..., "ellipsis has no literal form"),
        (range(3), "range has no literal form"),
        (len, "builtin_function_or_method has no literal form"),
        ({"a": [1, {2: object()}]}, "at ['a'][1][2]: object has no literal form"),
        ({(1, object()): 1}, "at .keys()[1]: object has no literal form"),
        (CYCLE, "at [1]['back']: list contains itself"),
        (nested(MAX_DEPTH + 1), f"nested over {MAX_DEPTH} deep"),
        (10**5000, "int of too many digits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_without_literal_form_is_refused_with_place_and_type(
    value: object, says: str
) -> None:
    with pytest.raises(NoLiteralError, match=r".") as caught:
        literal(value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [set(), {1, "a", (2,)}, (1,), (), -0.0, 1e308, 5e-324, -5, 1 - 2j, b"\0\xff", "\ud800", {}],
    ids=repr,
)
def test_a_literal_reads_back_as_the_same_value(value: object) -> None:
    read = ast.literal_eval(literal(value))
    assert read == value
    assert type(read) is type(value)
    assert repr(read) == repr(value) or isinstance(value, set)


def test_the_deepest_value_that_is_written_can_be_read() -> None:
    value = nested(MAX_DEPTH)
    assert ast.literal_eval(literal(value)) == value


def test_a_value_that_stands_in_two_places_is_no_cycle() -> None:
    shared = [1]
    assert literal([shared, shared]) == "[[1], [1]]"


def test_equal_sets_are_written_alike() -> None:
    # Small integers that collide in the table stand in the order in which they came.
    assert [*{8, 0}] != [*{0, 8}]
    assert literal({8, 0}) == literal({0, 8})


def test_a_secret_is_written_as_its_text() -> None:
    assert literal([Secret("it's")]) == '["it\'s"]'
