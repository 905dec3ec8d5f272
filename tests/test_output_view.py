"""The model view: what a terminal would show, within a budget, whatever is fed and however."""

import itertools
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc.output import ModelView, View, clip, strip_ansi, tokens_estimate
from replsvc.output.budget import shown, width
from replsvc.output.terminal import LINE_BOUND, STRING_BOUND


def view(*chunks: bytes, max_bytes: int = 50_000, max_lines: int = 2_000, **more: str) -> View:
    collected = ModelView(max_bytes, max_lines, **more)  # type: ignore[arg-type]
    for chunk in chunks:
        collected.feed("stdout", chunk)
    return collected.render()


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"ab\rX\n", "Xb\n"),
        (b"10%\r20%\r100%\n", "100%\n"),
        (b"x\r\ny\r\r\nz", "x\ny\nz"),
        (b"long text\r\x1b[Kok\n", "ok\n"),
        (b"long text\r\x1b[2Kok\n", "ok\n"),
        (b"long text\x1b[2K\x1b[1Gok\n", "ok\n"),
        (b"abc\r\x1b[1Kx", "xbc"),
        (b"abc\b\b\x1b[1Kx", " xc"),
        (b"abc\x1b[2Kd", "   d"),
        (b"spin|\b/\b-\bdone\n", "spindone\n"),
        (b"\b\ba", "a"),
        ("äöü\rx".encode(), "xöü"),
        (b"\x1b[01;31m\x1b[Kred\x1b[m\x1b[K!", "red!"),
        (b"a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1bPq#0\x1b\\d\x1b(Be\x1b7f\x1b=g", "abcdefg"),
        (b"ding\a", "ding"),
        (b"\x00\x0c\x7f\t|", "\\x00\\x0c\\x7f\t|"),
        ("a\x9bm".encode(), "a\\x9bm"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"\xed\xb2\x80", "\\xed\\xb2\\x80"),
        (b"lone \x1b\n", "lone \\x1b\n"),
        (b"cut \x1b[3", "cut \\x1b[3"),
        (b"\x1b\x1b[0m[K", "\\x1b[K"),
        ("é\xa0日本".encode(), "é\xa0日本"),
    ],
)
def test_bytes_are_shown_as_a_terminal_would_leave_them(raw: bytes, text: str) -> None:
    assert view(raw).text == text
    assert view(*(raw[i : i + 1] for i in range(len(raw)))).text == text


def test_an_endless_control_string_hides_at_most_its_bound() -> None:
    body = b"x" * (STRING_BOUND + 1)
    assert view(b"\x1b]" + body).text == "\\x1b]" + body.decode()
    assert view(b"\x1b]0;lost\nkept").text == "\\x1b]0;lost\nkept"


def test_streams_decode_each_on_its_own_and_interleave_in_order_of_arrival() -> None:
    collected = ModelView(1_000, 10)
    collected.feed("stdout", b"a\xc3")
    collected.feed("stderr", b"\x1b[3")
    collected.feed("stdout", b"\xa9")
    collected.feed("stderr", b"1mred\n")
    assert collected.render().text == "aéred\n"


def test_one_stream_does_not_erase_what_another_wrote() -> None:
    collected = ModelView(1_000, 10)
    collected.feed("stdout", b"result: 42")
    collected.feed("stderr", b"\r 1%\r 2%")
    collected.feed("stdout", b" more\n")
    assert collected.render().text == "result: 42 2% more\n"


def test_rendering_in_between_changes_nothing() -> None:
    collected = ModelView(1_000, 10)
    for part in (b"a\r", b"b\xe2", b"\x82", b"\xac\x1b[", b"1m\n"):
        collected.feed("stdout", part)
        collected.render()
    assert collected.render().text == "b€\n"


def test_line_starts_are_known() -> None:
    collected = ModelView(1_000, 10)
    assert collected.at_line_start
    collected.feed("stdout", b"a")
    assert not collected.at_line_start
    collected.feed("stdout", b"\n")
    assert collected.at_line_start


def test_both_ends_are_kept_and_the_middle_is_announced() -> None:
    raw = b"".join(b"line %d\n" % number for number in range(10_000))
    collected = ModelView(1_000, 2_000)
    collected.feed("stdout", raw)
    cut = collected.render("the whole log: artifact log-1")
    head, notice, tail = cut.text.partition("[... ")
    said, _, tail = tail.partition("]\n")
    assert raw.startswith(head.encode())
    assert head.endswith("\n")
    assert raw.endswith(tail.encode())
    assert tail.startswith("line ")
    assert said == (
        f"{cut.shown_bytes:,} of {len(raw):,} bytes and {cut.shown_lines:,} of 10,000 lines shown;"
        " the whole log: artifact log-1"
    )
    assert notice
    assert cut.shown_bytes == len(head) + len(tail)
    assert cut.shown_lines == head.count("\n") + tail.count("\n")
    assert 900 < len(cut.text) <= 1_000
    assert cut.truncated


def test_lines_count_against_the_budget_too() -> None:
    cut = view(b"x\n" * 5_000, max_lines=10)
    assert cut.text.count("\n") == 10
    assert cut.shown_lines == 9
    assert cut.total_lines == 5_000


def test_only_the_head_or_only_the_tail_can_be_kept() -> None:
    raw = b"".join(b"line %d\n" % number for number in range(1_000))
    head, tail = (view(raw, max_bytes=500, keep=keep).text for keep in ("head", "tail"))
    assert head.startswith("line 0\n")
    assert head.endswith("lines shown]")
    assert tail.startswith("[... ")
    assert tail.endswith("line 999\n")


def test_one_huge_line_is_cut_inside_and_counted_once() -> None:
    cut = view(b"a" * 400_000, b"z" * 400_000, max_bytes=1_000)
    assert cut.shown_lines == cut.total_lines == 1
    assert cut.text.startswith("a" * 400)
    assert cut.text.endswith("z" * 400)


def test_a_long_line_after_a_short_one_is_not_dropped_whole() -> None:
    cut = view(b"short\n" + b"a" * 5_000 + b"\nend\n", max_bytes=1_000)
    assert cut.shown_bytes > 800


def test_cuts_never_split_a_character() -> None:
    for size in range(200, 210):
        assert "\\x" not in view("€".encode() * 500, max_bytes=size).text


def test_escaped_bytes_are_counted_as_they_came() -> None:
    cut = view(b"\xff" * 1_000, max_bytes=1_000)
    assert cut.shown_bytes == cut.text.count("\\xff") < 1_000
    assert len(cut.text) <= 1_000


@pytest.mark.parametrize("max_bytes", [1, 2, 5, 8, 20, 50, 60])
def test_a_tiny_budget_shortens_the_notice(max_bytes: int) -> None:
    cut = clip("word\n" * 100, max_bytes, 10, where="somewhere " * 10)
    assert len(cut.text) <= max_bytes
    assert cut.truncated


def test_a_budget_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_lines=0"):
        ModelView(10, 0)
    with pytest.raises(ValueError, match='"middle", "head" or "tail"'):
        ModelView(10, 10, "nose")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "chunk",
    [
        b"x" * 65_536,
        b"ab\n" * 20_000,
        b"\r 10% of it",
        b"a\b" * 10_000,
        b"\x1b]" + b"x" * 5_000,
        b"\x1b[" * 9_000,
        b"\xff\r" * 9_000,
        "█".encode() * 5_000 + b"\b",
        b"x" * (LINE_BOUND - 1) + b"\r",
    ],
)
def test_memory_stays_bounded_whatever_is_fed(chunk: bytes) -> None:
    import tracemalloc

    collected = ModelView(10_000, 200)
    for _ in range(20):
        collected.feed("stdout", chunk)
    tracemalloc.start()
    try:
        for _ in range(60):
            collected.feed("stdout", chunk)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000
    assert 60 * len(chunk) < 800 or collected.total_bytes == 80 * len(chunk)


PIECES = st.sampled_from(
    [
        *(b"a", b"word", b"\n", b"\n\n", b"\r", b"\r\n", b"\b", b"\b\b", b"\a", b"\x00", b"\t"),
        *(
            b"\x1b",
            b"\x1b[31m",
            b"\x1b[0m",
            b"\x1b[K",
            b"\x1b[1K",
            b"\x1b[2K",
            b"\x1b[1G",
            b"\x1b[",
        ),
        *(
            b"\x1b]0;t\x07",
            b"\x1b]8;;x\x1b\\",
            b"\x1bPq",
            b"\x1b\\",
            b"\x1b(B",
            b"[",
            b"K",
            b"0",
            b"]",
        ),
        *(
            "é".encode(),
            "█".encode(),
            "🐍".encode(),
            b"\xff",
            b"\xc3",
            b"\xa9",
            b"\xe2\x96",
            b"\xf0\x9f",
        ),
        *("\x9b".encode(), b"a line of some length\n", b"x" * 9_000, b"\x1b]" + b"y" * 4_200),
    ]
)
OUTPUT = st.lists(PIECES, max_size=40).map(b"".join)


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    raw = draw(OUTPUT)
    cuts = sorted(draw(st.sets(st.integers(0, len(raw)), max_size=20))) if raw else []
    edges = [0, *cuts, len(raw)]
    return raw, [raw[a:b] for a, b in itertools.pairwise(edges)]


BUDGETS = {
    "max_bytes": st.integers(1, 400) | st.integers(400, 30_000),
    "max_lines": st.integers(1, 30),
    "keep": st.sampled_from(["middle", "head", "tail"]),
}


@settings(max_examples=400, deadline=None)
@given(parts=chunked(), **BUDGETS)
def test_the_view_does_not_depend_on_how_the_bytes_are_cut_up(
    parts: tuple[bytes, list[bytes]], max_bytes: int, max_lines: int, keep: str
) -> None:
    raw, chunks = parts
    whole = view(raw, max_bytes=max_bytes, max_lines=max_lines, keep=keep)
    assert view(*chunks, max_bytes=max_bytes, max_lines=max_lines, keep=keep) == whole


@settings(max_examples=400, deadline=None)
@given(
    feeds=st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=30) | OUTPUT)
    ),
    **BUDGETS,
)
def test_the_budget_holds_and_the_counts_are_those_of_the_input(
    feeds: list[tuple[str, bytes]], max_bytes: int, max_lines: int, keep: str
) -> None:
    collected = ModelView(max_bytes, max_lines, keep)  # type: ignore[arg-type]
    for name, data in feeds:
        collected.feed(name, data)
    cut = collected.render("the log")
    raw = b"".join(data for _, data in feeds)
    assert len(cut.text.encode()) <= max_bytes
    assert cut.text.count("\n") + (not cut.text.endswith("\n")) <= max(max_lines, 1)
    assert json.loads(json.dumps(cut.text)) == cut.text
    assert not {*range(0x20), *range(0x7F, 0xA0)} - {9, 10} & set(map(ord, cut.text))
    assert cut.total_bytes == len(raw)
    assert raw.count(b"\n") <= cut.total_lines <= raw.count(b"\n") + 1
    assert cut.shown_bytes <= cut.total_bytes
    assert cut.shown_lines <= cut.total_lines


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))), st.integers(1, 99))
def test_plain_text_within_the_budget_comes_back_as_it_is(text: str, spare: int) -> None:
    size = len(text.encode())
    assert clip(text, size + spare, 1).text == text
    if size > 1:
        assert clip(text, size - 1, 1).truncated


def expected_screen(raw: bytes) -> str:
    """A terminal's line discipline in its plainest form: one cell at a time."""
    lines: list[list[str]] = [[]]
    cursor = 0
    moves = {"\x1b[K": 0, "\x1b[1K": 1, "\x1b[2K": 2}
    text = raw.decode()
    at = 0
    while at < len(text):
        erase = next((seq for seq in moves if text.startswith(seq, at)), "")
        cells = lines[-1]
        if erase:
            at += len(erase)
            if moves[erase] == 0:
                del cells[cursor:]
            elif moves[erase] == 1:
                for i in range(min(cursor + 1, len(cells))):
                    cells[i] = " "
            else:
                cells.clear()
            continue
        char = text[at]
        at += 1
        if char == "\n":
            lines.append([])
            cursor = 0
        elif char == "\r":
            cursor = 0
        elif char == "\b":
            cursor = max(0, cursor - 1)
        else:
            cells.extend(" " * (cursor + 1 - len(cells)))
            cells[cursor] = char
            cursor += 1
    return "\n".join("".join(cells) for cells in lines)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["a", "bc", "é█", "\r", "\b", "\n", "\x1b[K", "\x1b[1K", "\x1b[2K", "long run"]
        )
    ).map("".join)
)
def test_overwriting_agrees_with_a_terminal_of_one_cell_a_character(text: str) -> None:
    assert view(text.encode()).text == expected_screen(text.encode())


@settings(max_examples=400, deadline=None)
@given(
    st.text() | OUTPUT.map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    st.integers(1, 300),
    st.integers(1, 12),
    st.sampled_from(["", "log of call c1"]),
)
def test_clipping_twice_is_clipping_once(
    text: str, max_bytes: int, max_lines: int, where: str
) -> None:
    once = clip(text, max_bytes, max_lines, where).text
    again = clip(once, max_bytes, max_lines, where)
    assert again.text == once
    assert not again.truncated


@given(st.binary(max_size=200) | OUTPUT)
def test_the_width_is_that_of_the_shown_text(raw: bytes) -> None:
    assert width(raw) == len(shown(raw).encode()) >= len(raw)


def test_lone_surrogates_are_shown_escaped() -> None:
    assert clip("a\udc80\ud800b", 100, 10).text == "a\\udc80\\ud800b"


@given(st.text(st.characters(exclude_characters="\x1b"), max_size=50))
def test_text_without_escapes_is_not_touched_by_stripping(text: str) -> None:
    assert strip_ansi(text) == text
    assert strip_ansi(f"\x1b[1;31m{text}\x1b[0m") == text


def test_tokens_are_a_quarter_of_the_bytes_rounded_up() -> None:
    assert [tokens_estimate(text) for text in ("", "a", "abcd", "abcde", "€€", "\udc80")] == [
        0,
        1,
        1,
        2,
        2,
        2,
    ]


def test_importing_the_views_loads_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys, replsvc.output, replsvc.redaction;"
        "print(sorted({'trio', 'zmq', 'sqlalchemy', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
