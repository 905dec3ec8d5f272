"""What of a mimebundle a model gets, whatever a kernel puts into it."""

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc.output import Picture, Unshown, candidates, fit, image_pixels, image_size, mime_text
from replsvc.output.images import IMAGE_TYPES
from replsvc.output.markup import MAX_HTML, html_text


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + b"\0" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int, padding: int = 0) -> bytes:
    app = b"\xff\xe0" + struct.pack(">H", 2 + padding) + b"\0" * padding
    frame = struct.pack(">HBHHB", 8, 8, height, width, 0)
    return b"\xff\xd8" + app + b"\xff\xff\xc2" + frame + b"\xff\xd9"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + kind + b"\0\0\0\0" + body


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGES = [
    ("image/png", png(3, 5)),
    ("image/jpeg", jpeg(3, 5)),
    ("image/jpeg", jpeg(3, 5, padding=60_000)),
    ("image/gif", gif(3, 5)),
    ("image/webp", webp(b"VP8X", b"\0\0\0\0" + b"\2\0\0\4\0\0")),
    ("image/webp", webp(b"VP8L", b"\x2f" + struct.pack("<I", 2 | 4 << 14))),
    ("image/webp", webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 3, 5))),
]


@pytest.mark.parametrize(("mime_type", "data"), IMAGES)
def test_sizes_are_read_from_the_header(mime_type: str, data: bytes) -> None:
    assert image_size(mime_type, data) == (3, 5)
    assert image_pixels(mime_type, data) == image_pixels(mime_type, b64(data)) == 15


@pytest.mark.parametrize(("mime_type", "data"), IMAGES)
def test_an_image_that_ends_anywhere_never_raises(mime_type: str, data: bytes) -> None:
    for end in range(min(len(data), 100)):
        assert image_pixels(mime_type, data[:end]) in (0, 15)
    assert image_pixels(mime_type, data[:12]) == 0 or mime_type == "image/gif"


def picture(bundle: dict[str, Any]) -> Picture | Unshown:
    return fit(candidates(bundle), 1_568)


@pytest.mark.parametrize(("mime_type", "data"), IMAGES)
def test_images_are_given_with_their_type(mime_type: str, data: bytes) -> None:
    assert picture({mime_type: b64(data)}) == Picture(mime_type, b64(data), 15)  # type: ignore[arg-type]


def test_line_breaks_in_base64_are_taken_out() -> None:
    data = png(50, 50)
    shown = picture({"image/png": base64.encodebytes(data).decode()})
    assert shown == Picture("image/png", b64(data), 2_500)


@pytest.mark.parametrize(
    "bundle",
    [
        {},
        {"image/png": b64(gif(1, 1))},
        {"image/png": b64(png(1, 1))[:-1] + "!"},
        {"image/png": "é" + b64(png(1, 1))},
        {"image/png": b64(png(1, 1)) + "===="},
        {"image/png": ""},
        {"image/png": 7},
        {"image/png": png(1, 1)},
        {"image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg'/>"},
        {"image/svg+xml": b64(png(1, 1))},
    ],
)
def test_what_is_no_image_for_a_model_is_none(bundle: dict[str, Any]) -> None:
    assert isinstance(picture(bundle), Unshown)


def test_an_image_that_is_none_gives_way_to_another() -> None:
    bundle = {"image/png": b64(png(100, 100))[:-4], "image/gif": b64(gif(1, 1))}
    bundle["image/png"] += "!!!!"
    assert picture(bundle) == Picture("image/gif", b64(gif(1, 1)), 1)


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        ({"text/plain": "  a\n0 1\n", "text/html": "<table>"}, "  a\n0 1\n"),
        ({"text/plain": "x", "text/markdown": "# x", "text/latex": "$x$"}, "x"),
        ({"text/markdown": "# x", "text/html": "<h1>x</h1>"}, "# x"),
        ({"text/latex": "$x$"}, "$x$"),
        ({"application/json": {"a": [1, "é"]}}, '{"a":[1,"é"]}'),
        ({"application/json": None}, "null"),
        ({"text/html": "<p>hi"}, "hi"),
        ({"text/plain": ["a\n", "b"]}, "a\nb"),
        (
            {"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "**x**"},
            "**x**",
        ),
        ({"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>x</b>"}, "x"),
        ({"text/plain": "<__main__.A at 0x7f00>", "text/html": "<b>x</b>"}, "x"),
        ({"text/plain": "<a.b.<locals>.C object at 0x7f00>", "text/latex": "$x$"}, "$x$"),
        ({"text/plain": "<__main__.A at 0x7f00>"}, "<__main__.A at 0x7f00>"),
        (
            {"text/plain": "<IPython.core.display.SVG object>"},
            "<IPython.core.display.SVG object>",
        ),
        (
            {"text/plain": 3, "text/html": b"x", "text/markdown": [1]},
            "[not shown, whole in its event: text/html; text/markdown, 3 characters]",
        ),
        (
            {"text/plain": "<IPython.core.display.SVG object>", "image/svg+xml": "<svg/>"},
            "<IPython.core.display.SVG object>\n"
            "[not shown, whole in its event: image/svg+xml, 6 characters]",
        ),
        (
            {"text/plain": "<a.IFrame at 0x7f00>", "text/html": "<iframe src='x'></iframe>"},
            "<a.IFrame at 0x7f00>\n[not shown, whole in its event: text/html, 25 characters]",
        ),
        (
            {"application/vnd.x+json": {"a": 1}, "text/html": "<div></div>"},
            "[not shown, whole in its event: application/vnd.x+json, 8 characters; "
            "text/html, 11 characters]",
        ),
        (
            {f"x/{n}": "" for n in range(7)},
            "[not shown, whole in its event: "
            + "; ".join(f"x/{n}, 0 characters" for n in range(5))
            + "; 2 more]",
        ),
        ({"text/html": "<img src='x'>", "image/png": "x"}, None),
        (
            {"text/markdown": f"![x](data:image/png;base64,{'A' * 400}) y"},
            "![x]([image/png, 300 bytes left out]) y",
        ),
        ({"image/png": "x"}, None),
        ({}, None),
    ],
)
def test_the_text_for_a_model_follows_the_media_types(
    bundle: dict[str, Any], text: str | None
) -> None:
    assert mime_text(bundle) == text


def test_html_becomes_lines_and_tables_rows() -> None:
    html = """<style>td {color: red}</style><script>alert(1)</script><h1>Sales &amp; more</h1>
    <p>first   paragraph<br>second line</p>
    <table><thead><tr><th></th><th>a</th></tr></thead>
    <tbody><tr><td>0</td><td><p>1</p></td></tr><tr><td>1</td><td>&lt;2&gt;</td></tr></tbody></table>
    <ul><li>one</li><li>two</ul><pre>x
  y</pre>end"""
    assert html_text(html).split("\n") == [
        *("Sales & more", "first paragraph", "second line"),
        *("| a", "0 | 1", "1 | <2>", "- one", "- two", "x", "  y", "end"),
    ]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("1 < 2 <3> & &lt;x&gt;", "1 < 2 <3> & <x>"),
        ("a<!-- <p>b --> c<!-- d", "a c"),
        ("<!DOCTYPE html><?xml x?>a", "a"),
        ("a<SCRIPT>x</p>'</scripts>y</Script >b", "ab"),
        ("a<svg><text>x</text></svg>b<svg/>c", "abc"),
        ("""<a title="x>y" href='>'>z</a>""", "z"),
        ("<p>a</p></head><tr><td>b<div>c</div></td></tr>d", "a\nb c\nd"),
    ],
)
def test_markup_is_read_as_browsers_do(html: str, text: str) -> None:
    assert html_text(html) == text


DATA = "data:audio/wav;base64," + "Ab+/" * 1_000


@pytest.mark.parametrize(
    ("html", "text"),
    [
        (
            f'<audio controls><source src="{DATA}" type="audio/wav"/>No audio here.</audio>',
            "[audio/wav, 3,000 bytes left out]No audio here.",
        ),
        (f"<video src='{DATA}'>", "[audio/wav, 3,000 bytes left out]"),
        (f"<img src={DATA}>x", "[audio/wav, 3,000 bytes left out]x"),
        (f"<p>a {DATA} b", "a [audio/wav, 3,000 bytes left out] b"),
        (f"<style>@font-face {{src: url({DATA})}}</style><script>'{DATA}'</script>x", "x"),
        (f'<a href="data:text/plain,{"%20" * 100}">x</a>', "[text/plain, 300 bytes left out]x"),
        ('<img src="data:image/gif;base64,R0lGODlh">x', "x"),
        (f'<iframe srcdoc="{"&lt;p&gt;word " * 10_000}"></iframe>x', "x"),
    ],
)
def test_data_in_html_is_named_and_not_shown(html: str, text: str) -> None:
    assert html_text(html) == text


def test_data_does_not_count_as_html_that_was_read() -> None:
    data = "data:video/mp4;base64," + "A" * 2 * MAX_HTML
    text = html_text(f'<video src="{data}"></video><p>after')
    assert text == f"[video/mp4, {MAX_HTML * 3 // 2:,} bytes left out]\nafter"


def test_a_tag_that_the_bound_cuts_is_not_shown() -> None:
    text = html_text(f'<p>before<iframe srcdoc="{"&lt;p&gt;word " * MAX_HTML}"></iframe>')
    assert text.split("\n")[0] == "before"
    assert "word" not in text


def test_html_that_was_read_in_part_says_so() -> None:
    text = html_text("<p>word</p>" * 100_000)
    assert text.startswith("word\nword\n")
    assert text.endswith(f"[HTML of 1,100,000 characters: text of the first {MAX_HTML:,} only]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
ANYTHING = JSON | st.binary(max_size=20) | st.builds(object) | st.sampled_from([{1}, {(1,): 2}])
HTML = st.lists(
    st.sampled_from(
        [
            *("<", ">", "</", "<!--", "-->", "<!", "<![CDATA[", "<?", "&", "&#x110000;", "&#0;"),
            *("<td", "<pre>", "</pre>", "<script>", "</script>", "<tr/>", "</table>", "<li>"),
            *("='", '"', "a b", "<svg>", "</svg>", "</"),
        ]
    )
).map("".join)
TYPES = ["text/plain", "text/html", "text/markdown", "text/latex", "application/json", *IMAGE_TYPES]


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(TYPES), ANYTHING | HTML | st.just([["a"]])))
def test_no_value_of_a_mimebundle_raises(bundle: dict[str, Any]) -> None:
    text = mime_text(bundle)
    assert text is None or isinstance(text, str)
    assert isinstance(picture(bundle), Unshown)


@given(st.sampled_from(IMAGES), st.binary(max_size=64), st.integers(0, 60))
def test_damaged_headers_never_raise(image: tuple[str, bytes], damage: bytes, at: int) -> None:
    mime_type, data = image
    assert image_pixels(mime_type, data[:at] + damage) >= 0
    assert image_pixels(mime_type, data[:at] + damage + data[at + len(damage) :]) >= 0


def test_json_too_deep_to_write_is_only_named() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    note = "[not shown, whole in its event: application/json]"
    assert mime_text({"application/json": deep}) == note


def test_json_source_can_be_read_back() -> None:
    value = {"x": [1.5, "\u2028", None, {"y": True}]}
    text = mime_text({"application/json": value})
    assert text is not None
    assert json.loads(text) == value
