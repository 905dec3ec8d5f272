"""What a model sees of a call whose displays change, are cleared, and come between its lines."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsvc.calls import Keep
from replsvc.output import Page, clip
from replsvc.output.page import MAX_PLACES


def page(max_bytes: int = 50_000, max_lines: int = 2_000, keep: Keep = "middle") -> Page:
    return Page(max_bytes, max_lines, keep)


def plain(text: str) -> dict[str, Any]:
    return {"text/plain": text}


def text_of(shown: Page) -> str:
    shown.develop(1_568)
    return shown.render("the log").text


def test_an_update_replaces_its_display_where_it_stands() -> None:
    shown = page()
    shown.write("stdout", b"before\n")
    shown.show(plain("1 %"), "bar")
    shown.write("stdout", b"between\n")
    shown.show(plain("100 %\ndone"), "bar", update=True)
    shown.write("stdout", b"after\n")
    assert text_of(shown) == "before\n100 %\ndone\nbetween\nafter\n"


def test_a_display_that_is_shown_twice_is_updated_in_both_places() -> None:
    shown = page()
    for name in ("a", "b"):
        shown.write("stdout", f"{name}\n".encode())
        shown.show(plain("old"), "x")
    shown.show(plain("new"), "x", update=True)
    assert text_of(shown) == "a\nnew\nb\nnew\n"


def test_an_update_of_another_calls_display_is_a_display_of_this_one() -> None:
    shown = page()
    shown.show(plain("1"), "elsewhere", update=True)
    shown.show(plain("2"), "elsewhere", update=True)
    assert text_of(shown) == "2\n"


def test_a_display_starts_on_a_line_of_its_own() -> None:
    shown = page()
    shown.write("stdout", b"loading...")
    shown.show(plain("table"))
    shown.write("stdout", b"more")
    shown.show(plain("table"), "id")
    assert text_of(shown) == "loading...\ntable\nmore\ntable\n"


def test_clear_takes_back_what_was_shown_and_counts_it_still() -> None:
    shown = page()
    shown.write("stdout", b"gone\n")
    shown.show(plain("gone"))
    shown.show(plain("gone"), "x")
    shown.clear(wait=False)
    shown.write("stdout", b"kept\n")
    view = shown.render("")
    assert view.text == "kept\n"
    assert view.total_bytes == 20
    assert not view.truncated


def test_clear_that_waits_clears_when_something_follows() -> None:
    shown = page()
    shown.write("stdout", b"frame 1\n")
    shown.clear(wait=True)
    assert text_of(shown) == "frame 1\n"
    shown.write("stderr", b"frame 2\n")
    assert text_of(shown) == "frame 2\n"


def test_an_update_is_nothing_that_follows() -> None:
    shown = page()
    shown.show(plain("1"), "x")
    shown.clear(wait=True)
    shown.show(plain("2"), "x", update=True)
    assert text_of(shown) == "2\n"


def test_clear_takes_back_images_and_the_value() -> None:
    shown = page()
    shown.show({"image/png": "damaged"})
    shown.set_value(plain("1"))
    shown.clear(wait=False)
    assert (text_of(shown), shown.value, shown.notes) == ("", None, ())


def test_the_last_value_is_the_calls_and_earlier_ones_are_shown() -> None:
    shown = page()
    shown.set_value(plain("1"))
    shown.set_value(plain("2"))
    assert text_of(shown) == "=> 1\n"
    assert shown.value == plain("2")


def test_places_are_bounded_and_nothing_is_lost_beyond() -> None:
    shown = page()
    for n in range(MAX_PLACES + 5):
        shown.show(plain(f"old {n}"), str(n))
    shown.show(plain("new"), "0", update=True)
    shown.show(plain("new"), str(MAX_PLACES), update=True)
    lines = text_of(shown).splitlines()
    assert lines[0] == "new"
    assert lines[MAX_PLACES] == f"old {MAX_PLACES}"
    assert lines[-1] == "new"
    assert len(lines) == MAX_PLACES + 6


def test_streams_can_not_write_what_stands_for_a_display() -> None:
    shown = page()
    shown.show(plain("secret place"), "x")
    for _ in range(2):
        shown.write("stdout", b"\x1b1\x1b\n")
        shown.write("stderr", b"\x1b")
        shown.write("stdout", b"1\x1b\n")
    assert text_of(shown).count("secret place") == 1


@pytest.mark.parametrize("keep", ["middle", "head", "tail"])
def test_a_long_display_is_cut_and_announced(keep: Keep) -> None:
    shown = page(1_000, 50, keep)
    shown.show(plain("\n".join(f"row {n}" for n in range(1_000))), "x")
    text = text_of(shown)
    assert len(text.encode()) <= 1_000
    assert "lines shown" in text
    assert ("row 0\n" in text) == (keep != "tail")
    assert ("row 999\n" in text) == (keep != "head")


texts = st.text(alphabet="ab\n\x1b1é\udc80\x07", max_size=40)
ids = st.sampled_from([None, "x", "y"])
steps = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["stdout", "stderr"]), st.binary(max_size=60)),
    st.tuples(st.just("show"), texts, ids),
    st.tuples(st.just("update"), texts, ids),
    st.tuples(st.just("clear"), st.booleans()),
    st.tuples(st.just("picture"), ids),
)


@given(
    st.lists(steps, max_size=60),
    st.integers(150, 400),
    st.integers(3, 12),
    st.sampled_from(["middle", "head", "tail"]),
)
def test_whatever_comes_the_text_is_valid_and_within_its_budget(
    taken: list[tuple[Any, ...]], max_bytes: int, max_lines: int, keep: Keep
) -> None:
    shown = page(max_bytes, max_lines, keep)
    for kind, *rest in taken:
        match kind:
            case "write":
                shown.write(*rest)
            case "show" | "update":
                shown.show(plain(rest[0]), rest[1], update=kind == "update")
            case "clear":
                shown.clear(wait=rest[0])
            case "picture":
                shown.show({"image/png": "no image", **plain("<Figure>")}, rest[0])
    shown.develop(1_568)
    view = shown.render("log of call c")
    assert len(view.text.encode()) <= max_bytes  # and valid UTF-8
    assert len(view.text.splitlines() if view.text.isascii() else view.text.split("\n")) <= (
        max_lines + 1
    )
    assert "\x1b" not in view.text
    assert view.truncated == ("shown" in view.text and "[..." in view.text)
    again = clip(view.text, max_bytes, max_lines, "log of call c", keep)
    assert again.text == view.text
    assert shown.render("log of call c") == view
