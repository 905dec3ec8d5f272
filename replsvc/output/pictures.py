"""Images of a call made fit for a model: checked, of bounded number and size, and downscaled.

What a kernel calls an image is hostile: it is decoded only where it must be made smaller, by the
four decoders that are meant for it, and never when it unfolds to more than `MAX_PIXELS`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replsvc.output.images import (
    IMAGE_TYPES,
    MAX_IMAGE_BYTES,
    ImageType,
    decode_base64,
    image_size,
)
from replsvc.output.mime import bundle_text

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_IMAGES = 20
"""Images in one result; models' interfaces refuse more."""
MAX_HELD_CHARS = 64 * 1024 * 1024
"""Base64 that one call may hold on to before it ends."""
MAX_QUICK_CHARS = 256 * 1024
MAX_PIXELS = 25_000_000
"""Pixels of an image that is decoded to be made smaller: four bytes each."""
MAX_SOURCE_BYTES = 48 * 1024 * 1024

_FORMATS: dict[ImageType, str] = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/webp": "WEBP",
}
_JPEG_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Picture:
    """An image for a model: base64 of `mime_type`, and its pixels."""

    mime_type: ImageType
    data: str
    pixels: int


@dataclass(frozen=True, slots=True)
class Unshown:
    """An image that a model does not get: its media type, its bytes (about), and why."""

    mime_type: str
    size: int
    reason: str

    def __str__(self) -> str:
        """Say it as one line for the model."""
        return f"[{self.mime_type} of {self.size:,} bytes is not shown: {self.reason}]"


def candidates(bundle: Mapping[str, Any]) -> tuple[tuple[ImageType, str], ...]:
    """What a bundle calls an image: types and base64, the best first, nothing checked."""
    found = ((mime_type, bundle_text(bundle, mime_type)) for mime_type in IMAGE_TYPES)
    return tuple((mime_type, text) for mime_type, text in found if text)


def fit(images: tuple[tuple[ImageType, str], ...], max_px: int) -> Picture | Unshown:
    """The first of `images` that a model can take, its longer side at most `max_px` pixels.

    `Unshown` speaks of the first where there is none. Decoding blocks: for a worker thread, where
    `Album.is_slow`.
    """
    refused: Unshown | None = None
    for mime_type, encoded in images:
        picture = _fit(mime_type, encoded, max_px)
        if isinstance(picture, Picture):
            return picture
        refused = refused or Unshown(mime_type, len(encoded) * 3 // 4, picture)
    return refused or Unshown("image", 0, "there is none")


def _fit(mime_type: ImageType, encoded: str, max_px: int) -> Picture | str:
    raw = decode_base64(encoded, MAX_SOURCE_BYTES)
    if raw is None:
        return f"it is not base64 of at most {MAX_SOURCE_BYTES:,} bytes"
    size = image_size(mime_type, raw)
    if size is None:
        return "it is damaged, or of another type"
    if max(size) <= max_px and len(raw) <= MAX_IMAGE_BYTES:
        return Picture(mime_type, "".join(encoded.split()), size[0] * size[1])
    if size[0] * size[1] > MAX_PIXELS:
        return f"{size[0]} x {size[1]} is more than {MAX_PIXELS:,} pixels"
    try:
        return _shrink(mime_type, raw, size, max_px)
    except Exception as error:  # noqa: BLE001 - decoders raise whatever damaged data brings about
        return f"it can't be decoded ({type(error).__name__})"


def _shrink(mime_type: ImageType, raw: bytes, size: tuple[int, int], max_px: int) -> Picture | str:
    from PIL import Image  # noqa: PLC0415 - few calls need it

    with Image.open(io.BytesIO(raw), formats=[_FORMATS[mime_type]]) as image:
        if image.size != size:
            return "its headers contradict each other"
        if mime_type == "image/jpeg":
            image.draft("RGB", (max_px, max_px))
        has_alpha = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
        small = image.convert("RGBA" if has_alpha else "RGB")
    small.thumbnail((max_px, max_px))
    kind: ImageType = "image/jpeg" if mime_type == "image/jpeg" else "image/png"
    data = _encoded(small, kind)
    if len(data) > MAX_IMAGE_BYTES:
        kind = "image/jpeg"
        ground = Image.new("RGBA", small.size, "white")
        ground.alpha_composite(small.convert("RGBA"))
        data = _encoded(ground, kind)
    if len(data) > MAX_IMAGE_BYTES:
        return f"it has more than {MAX_IMAGE_BYTES:,} bytes at {max_px} pixels too"
    return Picture(kind, base64.b64encode(data).decode(), small.width * small.height)


def _encoded(image: Image, kind: ImageType) -> bytes:
    file = io.BytesIO()
    if kind == "image/jpeg":
        image.convert("RGB").save(file, "JPEG", quality=_JPEG_QUALITY)
    else:
        image.save(file, "PNG")
    return file.getvalue()


class Album:
    """The images of one call by place, in the order of their first showing; bounded."""

    def __init__(self) -> None:
        self._images: dict[int, tuple[tuple[ImageType, str], ...]] = {}
        self._chars = 0
        self.left_out = 0

    def put(self, place: int, images: tuple[tuple[ImageType, str], ...]) -> bool:
        """Hold `images` at `place`, instead of what is there; whether there was room."""
        self.remove(place)
        chars = sum(len(text) for _, text in images)
        if len(self._images) >= MAX_IMAGES or self._chars + chars > MAX_HELD_CHARS:
            self.left_out += 1
            return False
        self._images[place] = images
        self._chars += chars
        return True

    def images(self, place: int) -> tuple[tuple[ImageType, str], ...]:
        """What is held at `place`."""
        return self._images.get(place, ())

    def remove(self, place: int) -> None:
        """Let go of what is at `place`."""
        self._chars -= sum(len(text) for _, text in self._images.pop(place, ()))

    def clear(self) -> None:
        """Let go of everything."""
        self._images.clear()
        self._chars = self.left_out = 0

    def __len__(self) -> int:
        return len(self._images)

    def is_slow(self, max_px: int) -> bool:
        """Whether `fit` takes long enough to need a thread of its own."""
        if self._chars > MAX_QUICK_CHARS:
            return True
        sizes = (image_size(*image) for images in self._images.values() for image in images)
        return any(size is not None and max(size) > max_px for size in sizes)

    def fit(self, max_px: int) -> dict[int, Picture | Unshown]:
        """Each image made fit, by place."""
        return {place: fit(images, max_px) for place, images in self._images.items()}
