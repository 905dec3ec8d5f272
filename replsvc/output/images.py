"""Image headers, read without decoding an image: what it is, and how many pixels it costs."""

from __future__ import annotations

import base64
import binascii
from typing import Literal

ImageType = Literal["image/png", "image/jpeg", "image/gif", "image/webp"]

IMAGE_TYPES: tuple[ImageType, ...] = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What models take, in order of preference. SVG is a document, not an image."""

MAX_IMAGE_BYTES = 5 * 1024 * 1024
"""Bound of an image that a model gets, decoded."""

_MAX_SEGMENTS = 1_000


def sniff(data: bytes) -> ImageType | None:
    """The type that `data` starts as, None for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def decode_base64(text: str, max_bytes: int) -> bytes | None:
    """The bytes of strict base64 (line breaks allowed), None when it is none or too long."""
    if len(text) > max_bytes * 2:
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) <= max_bytes else None


def image_size(mime_type: str, data: bytes | str) -> tuple[int, int] | None:
    """Width and height in pixels from the header, None when it can't be read.

    `data` is the image, or its base64 in a `str`.
    """
    raw = decode_base64(data, len(data)) if isinstance(data, str) else data
    if raw is None or sniff(raw) != mime_type:
        return None
    if mime_type == "image/png":
        size = (_big(raw, 16, 4), _big(raw, 20, 4)) if raw[12:16] == b"IHDR" else None
    elif mime_type == "image/gif":
        size = _little(raw, 6, 2), _little(raw, 8, 2)
    elif mime_type == "image/jpeg":
        size = _jpeg_size(raw)
    else:
        size = _webp_size(raw)
    return size if size and min(size) > 0 else None


def image_pixels(mime_type: str, data: bytes | str) -> int:
    """Width times height, 0 when they can't be read; see `image_size`."""
    size = image_size(mime_type, data)
    return size[0] * size[1] if size else 0


def _big(data: bytes, at: int, length: int) -> int:
    part = data[at : at + length]
    return int.from_bytes(part, "big") if len(part) == length else 0


def _little(data: bytes, at: int, length: int) -> int:
    part = data[at : at + length]
    return int.from_bytes(part, "little") if len(part) == length else 0


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        while data[at : at + 2] == b"\xff\xff":  # fill bytes
            at += 1
        marker = _big(data, at, 2)
        if marker >> 8 != 0xFF:
            return None
        kind = marker & 0xFF
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        if kind == 0x01 or 0xD0 <= kind <= 0xD7:
            at += 2
            continue
        length = _big(data, at + 2, 2)
        if length < 2 or kind in (0xD9, 0xDA):
            return None
        at += 2 + length
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = _little(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return None
