"""Images as a model gets them: checked, of bounded size and number, and downscaled."""

from __future__ import annotations

import base64
import io
import os
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from replsvc.output import Page, Picture, Unshown, candidates, fit, image_size
from replsvc.output.images import MAX_IMAGE_BYTES
from replsvc.output.pictures import MAX_IMAGES, MAX_PIXELS

MAX_PX = 1_568


def encoded(image: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def bundle(image: Image.Image, kind: str = "PNG", **options: Any) -> dict[str, Any]:
    return {f"image/{kind.lower()}": encoded(image, kind, **options)}


def shown(value: dict[str, Any], max_px: int = MAX_PX) -> Picture:
    picture = fit(candidates(value), max_px)
    assert isinstance(picture, Picture), picture
    size = image_size(picture.mime_type, picture.data)
    assert size is not None
    assert size[0] * size[1] == picture.pixels
    with Image.open(io.BytesIO(base64.b64decode(picture.data))) as image:
        image.load()
        assert image.size == size
    return picture


def refused(value: dict[str, Any]) -> str:
    picture = fit(candidates(value), MAX_PX)
    assert isinstance(picture, Unshown), picture
    return str(picture)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest.mark.parametrize(("width", "height"), [(3_000, 1_000), (10, 2_000), (1_569, 1_569)])
def test_an_image_that_is_too_large_is_made_smaller_and_keeps_its_shape(
    kind: str, width: int, height: int
) -> None:
    picture = shown(bundle(Image.new("RGB", (width, height), "red"), kind))
    size = image_size(picture.mime_type, picture.data)
    assert size is not None
    assert max(size) == MAX_PX
    assert abs(size[0] / size[1] - width / height) < 0.02 * max(1, width / height)
    assert picture.mime_type == ("image/jpeg" if kind == "JPEG" else "image/png")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_of_pixel_is_taken(mode: str) -> None:
    shown(bundle(Image.new(mode, (200, 100))), max_px=100)


def test_transparency_is_kept() -> None:
    picture = shown(bundle(Image.new("RGBA", (200, 200), (0, 0, 0, 0))), max_px=100)
    with Image.open(io.BytesIO(base64.b64decode(picture.data))) as image:
        assert image.getpixel((5, 5)) == (0, 0, 0, 0)


def test_an_image_within_the_bounds_is_passed_on_byte_for_byte() -> None:
    value = bundle(Image.new("RGB", (MAX_PX, 3)))
    assert shown(value).data == value["image/png"]


def test_an_image_of_too_many_bytes_is_made_smaller_too() -> None:
    noise = Image.frombytes("RGB", (1_500, 1_500), os.urandom(1_500 * 1_500 * 3))
    value = bundle(noise, compress_level=1)
    assert len(value["image/png"]) * 3 // 4 > MAX_IMAGE_BYTES
    picture = shown(value)
    assert picture.mime_type == "image/jpeg"
    assert len(picture.data) * 3 // 4 <= MAX_IMAGE_BYTES


def bomb(width: int, height: int) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(10_000_000), 9))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    assert f"more than {MAX_PIXELS:,} pixels" in refused({"image/png": bomb(100_000, 100_000)})


@pytest.mark.parametrize("cut", [40, 200, 2_000])
def test_a_damaged_image_that_must_be_decoded_is_refused(cut: int) -> None:
    whole = base64.b64decode(encoded(Image.effect_noise((1_600, 50), 50), "PNG"))
    assert "can't be decoded" in refused({"image/png": base64.b64encode(whole[:cut]).decode()})


def test_headers_that_contradict_each_other_are_refused() -> None:
    large = base64.b64decode(encoded(Image.new("RGB", (2_000, 100)), "PNG"))
    header = large[8:33]
    small = header[:8] + struct.pack(">II", 2_000, 50) + header[16:21]
    small += struct.pack(">I", zlib.crc32(small[4:21]))
    # our reader takes the first header, Pillow the last
    assert refused({"image/png": base64.b64encode(large[:8] + small + large[8:]).decode()})


def page_of(*bundles: dict[str, Any]) -> Page:
    page = Page(50_000, 2_000, "middle")
    for value in bundles:
        page.show(value)
    page.develop(MAX_PX)
    return page


def test_images_come_in_the_order_of_their_display_and_updates_take_their_place() -> None:
    page = Page(50_000, 2_000, "middle")
    for width in (1, 2, 3):
        page.show(bundle(Image.new("L", (width, 1))), f"id {width}")
    page.show(bundle(Image.new("L", (20, 1))), "id 2", update=True)
    page.show({"text/plain": "text now"}, "id 3", update=True)
    page.develop(MAX_PX)
    assert [picture.pixels for picture in page.pictures] == [1, 20]
    assert page.render("").text == "text now\n"


def test_an_image_that_can_not_be_shown_says_so_where_it_would_be() -> None:
    page = page_of({"image/png": "damaged", "text/plain": "<Figure>"})
    assert page.pictures == ()
    text = page.render("").text
    assert text.startswith("<Figure>\n[image/png of ")
    assert "is not shown: " in text


def test_a_value_whose_image_can_not_be_shown_has_a_note() -> None:
    page = Page(50_000, 2_000, "middle")
    page.set_value({"image/png": "damaged", "text/plain": "<Figure>"})
    page.develop(MAX_PX)
    (note,) = page.notes
    assert note.startswith("image/png of ")


def test_images_are_bounded_in_number_and_the_rest_is_counted() -> None:
    page = page_of(*[bundle(Image.new("L", (1, 1)))] * (MAX_IMAGES + 3))
    assert len(page.pictures) == MAX_IMAGES
    assert page.notes[0].startswith("3 more images are not shown")


def test_images_are_bounded_in_bytes_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replsvc.output.pictures.MAX_HELD_CHARS", 1_000)
    small = bundle(Image.new("L", (1, 1)))
    page = page_of(small, {"image/png": "A" * 1_000}, small)
    assert len(page.pictures) == 2
    assert page.notes[0].startswith("1 more images are not shown")


def test_large_images_are_known_to_be_slow_before_they_are_decoded() -> None:
    assert not page_of(bundle(Image.new("L", (10, 10)))).is_slow(MAX_PX)
    assert page_of(bundle(Image.new("L", (MAX_PX + 1, 1)))).is_slow(MAX_PX)
    assert page_of({"image/png": "A" * 1_000_000}).is_slow(MAX_PX)
