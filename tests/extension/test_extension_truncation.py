"""extensions.md rule 51: what a tool returns can be cut as the service cuts output."""

from __future__ import annotations

import pytest

from replsvc import truncate

LINES = "".join(f"line {number}\n" for number in range(1_000))


def test_what_fits_is_left_alone():
    view = truncate("one\ntwo\n", max_lines=2)
    assert (view.text, view.truncated, view.total_lines) == ("one\ntwo\n", False, 2)


@pytest.mark.parametrize(
    ("keep", "first", "last"), [("head", 1, 0), ("tail", 0, 1), ("middle", 1, 1)]
)
def test_what_is_kept_is_what_was_asked_for_and_the_rest_is_announced(keep, first, last):
    view = truncate(LINES, max_lines=10, keep=keep, where="see log.txt")
    assert view.truncated
    assert ("line 0\n" in view.text, view.text.endswith("line 999\n")) == (first, last)
    assert "of 1,000 lines shown; see log.txt]" in view.text
    assert len(view.text.splitlines()) <= 10


@pytest.mark.parametrize("max_bytes", [100, 1_000])
def test_bytes_are_counted_as_utf8_and_no_character_is_cut(max_bytes):
    view = truncate("ä€😀" * 1_000, max_bytes=max_bytes)
    assert max_bytes // 2 < len(view.text.encode()) <= max_bytes
    assert truncate(view.text, max_bytes=max_bytes).text == view.text


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="max_bytes"):
        truncate(LINES, max_bytes=0)
