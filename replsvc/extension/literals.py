"""Literals: the values that cross into a kernel, written as Python source for data."""

from __future__ import annotations

import cmath

from replsvc.extension.secret import Secret

MAX_DEPTH = 100
"""Containers in containers; Python's tokenizer refuses 200 brackets."""


class NoLiteralError(ValueError):
    """Raised for a value that has no literal form; the message says where in it, and which type."""


def literal(value: object) -> str:
    """Write `value` so that `ast.literal_eval` gives an equal one of the same types.

    None, bool, int, finite float and complex, str, bytes, and tuples, lists, dicts and sets of
    them; subclasses have none, for they would arrive as something else. A `Secret` is written as
    its text. A set's items are sorted as written, so that equal sets are written alike.
    Raises `NoLiteralError`.
    """
    return _write(value, "", ())


def _write(value: object, where: str, around: tuple[int, ...]) -> str:
    kind = type(value)
    if isinstance(value, Secret):
        return repr(value.reveal())
    if value is None or kind in (bool, str, bytes):
        return repr(value)
    if kind is int:
        try:
            return repr(value)
        except ValueError:
            raise NoLiteralError(f"{_at(where)}int of too many digits to be written") from None
    if isinstance(value, float | complex) and kind in (float, complex):
        if cmath.isfinite(value):
            return repr(value)
        raise NoLiteralError(f"{_at(where)}{kind.__name__} {value!r} has no literal form")
    if isinstance(value, tuple | list | set | dict) and kind in (tuple, list, set, dict):
        if id(value) in around:
            raise NoLiteralError(f"{_at(where)}{kind.__name__} contains itself")
        if len(around) == MAX_DEPTH:
            raise NoLiteralError(f"{kind.__name__} nested over {MAX_DEPTH} deep")
        return _container(value, where, (*around, id(value)))
    name = kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)
    raise NoLiteralError(f"{_at(where)}{name} has no literal form{_hint(value)}")


def _container(
    value: tuple[object, ...] | list[object] | set[object] | dict[object, object],
    where: str,
    around: tuple[int, ...],
) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{_write(key, f'{where}.keys()', around)}: "
            f"{_write(item, f'{where}[{_label(key)}]', around)}"
            for key, item in value.items()
        ]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, set):
        items = sorted(_write(item, f"{where}{{}}", around) for item in value)
        return "{" + ", ".join(items) + "}" if items else "set()"
    items = [_write(item, f"{where}[{position}]", around) for position, item in enumerate(value)]
    if isinstance(value, list):
        return "[" + ", ".join(items) + "]"
    return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"


def _label(key: object) -> str:
    return repr(key)[:60] if type(key) in (str, int, bool, bytes, Secret) else "..."


def _at(where: str) -> str:
    return f"at {where}: " if where else ""


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _hint(value: object) -> str:
    for plain in (str, bytes, bool, int, float, dict, list, tuple, set):
        if isinstance(value, plain):
            return f" (pass {plain.__name__}(...) of it)"
    if hasattr(value, "keys"):
        return " (pass dict(...) of it)"
    if isinstance(value, frozenset):
        return " (pass set(...) of it)"
    return ""
