"""Plain JSON and instants, as they stand in the database."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# ASCII only, so that lone surrogates, which no database takes, survive as escapes.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=True, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
# Text with fewer brackets can't be nested too deep.
_SURELY_READABLE = 100


def encode(value: dict[str, Any], what: str) -> str:
    """The JSON text of `value`.

    What readers are shown before the text is read again is made of it, too: were it `value` itself,
    then a tuple in it, or a caller who goes on changing it, would make the two differ.

    Raises `ValueError`, naming `what`, for anything that isn't plain JSON: NaN, infinities,
    objects, cycles, and nesting too deep to be read.
    """
    try:
        text = _encode(value)
        if text.count("[") + text.count("{") > _SURELY_READABLE:
            _decode(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not plain JSON: {error}") from error
    return text


def decode(text: str) -> dict[str, Any]:
    """The value that `encode` was given. Raises `ValueError` for text that is no JSON object."""
    value = _decode(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")  # noqa: TRY004 - data
    return value


def to_micros(at: datetime) -> int:
    """Microseconds since 1970 in UTC, exactly. Raises `TypeError` for a time without a zone."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The instant of `to_micros`, in UTC."""
    return _EPOCH + micros * _MICROSECOND
