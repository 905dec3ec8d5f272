"""What handlers return, checked: bounded, and JSON all through."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

MAX_JSON_BYTES = 1024 * 1024
"""Of a structured result, of `details` and of an update, as JSON text."""
MAX_TEXT_CHARS = 64 * 1024 * 1024
MAX_DEPTH = 100
MAX_IMAGES = 20
MAX_IMAGE_BYTES = 48 * 1024 * 1024
"""Of one image before it is made fit for a model."""
ImageType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a result: `data` are its bytes, in the format that `mime_type` names."""

    data: bytes = field(repr=False)
    mime_type: ImageType = "image/png"


Part: TypeAlias = str | Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """A result in full.

    - `content` is what the model gets: text, an image, or several of them.
    - `details` are JSON for programs, which no model reads.
    - `is_error` fails the call.
    - `terminate` says that the agent may stop here; a batch says so when all of its results do.
    """

    content: Part | list[Part] | tuple[Part, ...] = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """A result that may be shown and kept. `value` is the structured one, where there is any."""

    texts: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    value: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False
    terminate: bool = False


class ResultError(Exception):
    """What a handler returned is no result; the message says where and why, as a sentence's end."""


def checked(value: object, output: type[BaseModel] | None = None) -> Checked:
    """`value` as a result. Raises `ResultError` for what can't be one.

    With `output` a structured value is one of that model, or is made into one.
    """
    if isinstance(value, ToolResult):
        return _full(value)
    if isinstance(value, Image):
        return _full(ToolResult(content=value))
    if output is not None:
        try:
            value = output.model_validate(value)
        except Exception as error:  # a stranger's validators may raise anything
            raise ResultError(f"that its output model refuses: {error}") from error
    if isinstance(value, str):
        return _full(ToolResult(content=value))
    if value is None:
        return Checked()
    if isinstance(value, BaseModel):
        try:
            value = value.model_dump(mode="json")
        except Exception as error:  # a stranger's serializers may raise anything
            raise ResultError(f"a model that can't be written as JSON: {error}") from error
    text = json_text(value, "its result")
    return Checked(texts=(text,), value=json.loads(text))


def _kind(value: object) -> str:
    """Its type: the `repr` of what a handler returned may be as long as it likes."""
    return f"a {type(value).__qualname__}"


def _full(result: ToolResult) -> Checked:
    parts = [result.content] if isinstance(result.content, str | Image) else result.content
    if not isinstance(parts, list | tuple):
        raise ResultError(f"content that is {_kind(parts)}; give text, an Image, or a list of them")
    texts, images = [], []
    for position, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Image):
            images.append(part)
            if problem := _image_problem(part):
                raise ResultError(f"an image (content[{position}]) {problem}")
        else:
            raise ResultError(f"content[{position}] that is {_kind(part)}; give text or an Image")
    if len(images) > MAX_IMAGES:
        raise ResultError(f"{len(images)} images; models take {MAX_IMAGES} at most")
    if (size := sum(map(len, texts))) > MAX_TEXT_CHARS:
        raise ResultError(
            f"{size:,} characters of text, and {MAX_TEXT_CHARS:,} are the most: write long results "
            "to a file"
        )
    if not isinstance(result.details, Mapping):
        raise ResultError(f"details that are {_kind(result.details)}; give a mapping")
    details = json.loads(json_text(dict(result.details), "details")) if result.details else {}
    return Checked(
        texts=tuple(texts),
        images=tuple(images),
        details=details,
        is_error=bool(result.is_error),
        terminate=bool(result.terminate),
    )


def _image_problem(image: Image) -> str | None:
    if image.mime_type not in IMAGE_TYPES:
        return f"of type {image.mime_type!r:.50}; models take {', '.join(IMAGE_TYPES)}"
    if not isinstance(image.data, bytes):
        return f"whose data is {_kind(image.data)}, not bytes"
    if len(image.data) > MAX_IMAGE_BYTES:
        return f"of {len(image.data):,} bytes; {MAX_IMAGE_BYTES:,} are the most"
    return None


def encoded(image: Image) -> str:
    """An image's base64."""
    return base64.b64encode(image.data).decode("ascii")


def json_text(value: object, what: str) -> str:
    """`value` as JSON text. Raises `ResultError` that names the place in `what` that is none.

    Looked at before it is written: the standard encoder takes NaN, and says of what it refuses
    neither where it is nor how large the rest would be.
    """
    _check_json(value, what)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if (size := len(text)) > MAX_JSON_BYTES:
        raise ResultError(_too_large(what, size))
    return text


def _too_large(what: str, size: int) -> str:
    return (
        f"{what} of more than {size:,} bytes of JSON, and {MAX_JSON_BYTES:,} are the most: return "
        "less, or text"
    )


def _check_json(value: object, what: str) -> None:
    """Iterative, and it stops at what is too deep (a cycle is) or too large."""
    size = 0
    todo: list[tuple[object, str, int]] = [(value, what, 0)]
    while todo:
        item, place, depth = todo.pop()
        size += len(item) if isinstance(item, str) else 1
        if size > MAX_JSON_BYTES:
            raise ResultError(_too_large(what, MAX_JSON_BYTES))
        if depth > MAX_DEPTH:
            raise ResultError(f"{what} that is nested more than {MAX_DEPTH} deep, or in itself")
        if item is None or isinstance(item, bool | str):
            continue
        if isinstance(item, int):
            if abs(item) >= 1 << 1024:
                raise ResultError(f"{place} that is too large a number for JSON")
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise ResultError(f"{place} that is {item}, which JSON can't say; use None or text")
        elif isinstance(item, list | tuple):
            if size + len(item) > MAX_JSON_BYTES:
                raise ResultError(_too_large(what, MAX_JSON_BYTES))
            todo += [(part, f"{place}[{n}]", depth + 1) for n, part in enumerate(item)]
        elif isinstance(item, dict):
            for key, part in item.items():
                if not isinstance(key, str):
                    raise ResultError(f"{place} with a key that is no str, but {_kind(key)}")
                size += len(key)
                todo.append((part, f"{place}.{key}" if key.isidentifier() else place, depth + 1))
        else:
            raise ResultError(f"{place} that is {_kind(item)}, which JSON can't say")
