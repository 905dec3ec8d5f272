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


def encode(value: dict[str, Any], what: str) -> tuple[str, dict[str, Any]]:
    """The JSON text of `value`, and the value as it will be read back from that text.

    The copy is what readers are shown before the text is read again: were it `value` itself, then
    a tuple in it, or a caller who goes on changing it, would make the two differ.

    Raises `ValueError`, naming `what`, for anything that isn't plain JSON: NaN, infinities,
    objects, cycles, and nesting too deep to be read.
    """
    text = encode_only(value, what)
    try:
        return text, _decode(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not plain JSON: {error}") from error


def encode_only(value: dict[str, Any], what: str) -> str:
    """The text alone, of what nobody is shown. Raises `ValueError` as `encode` does."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not plain JSON: {error}") from error


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
