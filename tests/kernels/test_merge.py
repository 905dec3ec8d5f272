from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from replsvc_kernels._merge import MARKER, MAX_HELD_BYTES, MAX_HELD_DISPLAYS, Merger
from replsvc_kernels.messages import DisplayData, Output, Stream, StreamName

NONCE = b"0123456789abcdef"


def marker(number: object, nonce: bytes = NONCE) -> bytes:
    return MARKER % nonce + str(number).encode() + b"\x07"


def display(number: int) -> DisplayData:
    return DisplayData({"text/plain": str(number)})


def written(outputs: Iterable[Output], name: StreamName) -> bytes:
    return b"".join(o.data for o in outputs if isinstance(o, Stream) and o.name == name)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# Bytes with much of what a marker begins with.
shreds = st.sampled_from(
    [b"a", b"\n", b"\x1b", b"\x1b]", b"\x1b]9913;", MARKER % NONCE, MARKER % NONCE + b"12", b"\x07",
     marker(3), marker("t2"), marker("t3"), marker("t"), marker("x"), marker(""),
     marker(1, b"someone else's"), marker("9" * 40)]
)  # fmt: skip
texts = st.lists(shreds, max_size=12).map(b"".join)
plain = st.binary(max_size=20).filter(lambda data: b"\x1b" not in data)
cuts = st.lists(st.integers(0, 400), max_size=12)


@given(st.lists(st.tuples(plain, plain), min_size=1, max_size=6), cuts, cuts, st.data())
def test_displays_stand_at_their_markers_however_the_bytes_are_cut(
    parts: list[tuple[bytes, bytes]], out_cuts: list[int], err_cuts: list[int], data: st.DataObject
) -> None:
    # What an honest kernel writes: text, then display 1, text, display 2, ...
    whole: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
    for number, (out, err) in enumerate(parts):
        mark = marker(number) if number else b""
        whole["stdout"] += mark + out
        whole["stderr"] += mark + err
    roads: list[list[tuple[str, object]]] = [
        [("stdout", chunk) for chunk in chunked(whole["stdout"], out_cuts)],
        [("stderr", chunk) for chunk in chunked(whole["stderr"], err_cuts)],
        [("display", number) for number in range(1, len(parts))],
    ]
    merger, outputs = Merger(NONCE, "c"), list[Output]()
    while any(roads):
        road = data.draw(st.sampled_from([road for road in roads if road]))
        kind, item = road.pop(0)
        if kind == "display":
            outputs += merger.display(item, display(item))  # type: ignore[arg-type]
        else:
            outputs += merger.feed(kind, item)  # type: ignore[arg-type]
    outputs += merger.flush()
    seen, between = [], list[Output]()
    for output in [*outputs, None]:
        if isinstance(output, Stream):
            between.append(output)
        else:
            seen.append((written(between, "stdout"), written(between, "stderr")))
            between = []
    assert seen == parts
    assert [o for o in outputs if not isinstance(o, Stream)] == [
        display(number) for number in range(1, len(parts))
    ]


@given(texts, texts, cuts, cuts, st.lists(st.integers(0, 5), max_size=6))
def test_hostile_markers_lose_nothing(
    out: bytes, err: bytes, out_cuts: list[int], err_cuts: list[int], numbers: list[int]
) -> None:
    merger, outputs = Merger(NONCE), list[Output]()
    for chunk in chunked(out, out_cuts):
        outputs += merger.feed("stdout", chunk)
    for number in numbers:
        outputs += merger.display(number, display(number))
    for chunk in chunked(err, err_cuts):
        outputs += merger.feed("stderr", chunk)
    outputs += merger.flush()
    # Only whole markers are taken out; what merely looks like one is the user's.
    whole = re.compile(re.escape(MARKER % NONCE) + rb"t?[0-9]{1,15}\x07")
    assert written(outputs, "stdout") == whole.sub(b"", out)
    assert written(outputs, "stderr") == whole.sub(b"", err)
    shown = [o for o in outputs if isinstance(o, DisplayData)]
    assert sorted(o.data["text/plain"] for o in shown) == sorted(map(str, numbers))
    assert merger.flush() == []


def test_bytes_without_a_marker_pass_at_once() -> None:
    assert Merger(NONCE, "c").feed("stdout", b"now") == [Stream("stdout", b"now", "c")]


def test_bytes_after_a_marker_wait_for_its_display() -> None:
    merger = Merger(NONCE)
    assert merger.feed("stdout", b"a" + marker(1) + b"b") == [Stream("stdout", b"a")]
    assert merger.missing
    assert merger.feed("stderr", marker(1)) == []
    assert merger.display(1, display(1)) == [display(1), Stream("stdout", b"b")]
    assert not merger.missing


def test_what_is_held_is_bounded_in_bytes() -> None:
    merger = Merger(NONCE)
    merger.feed("stdout", marker(1))
    chunk = b"x" * (1024 * 1024)
    given_up = [merger.feed("stdout", chunk) for _ in range(MAX_HELD_BYTES // len(chunk) + 1)]
    assert given_up[:-1] == [[]] * (len(given_up) - 1)
    assert len(written(given_up[-1], "stdout")) == len(given_up) * len(chunk)


def test_displays_whose_markers_never_come_are_bounded_in_bytes_and_number() -> None:
    merger = Merger(NONCE)
    assert merger.display(1, display(1), MAX_HELD_BYTES) == []
    assert merger.crowded
    assert merger.display(2, display(2), 1) == [display(1), display(2)]
    assert not merger.crowded
    kept = [merger.display(n, display(n)) for n in range(3, 3 + MAX_HELD_DISPLAYS)]
    assert not any(kept)
    assert merger.crowded
    assert len(merger.display(0, display(0))) == MAX_HELD_DISPLAYS + 1


def test_bytes_make_room_for_displays() -> None:
    merger = Merger(NONCE)
    merger.display(1, display(1), MAX_HELD_BYTES)
    merger.feed("stdout", marker(1))
    assert merger.feed("stderr", marker(1)) == [display(1)]
    assert not merger.crowded


def test_a_display_that_is_said_twice_is_shown_twice() -> None:
    merger = Merger(NONCE)
    assert merger.display(1, display(1)) == []
    assert merger.display(1, display(1)) == [display(1)]


def test_a_stream_that_never_gets_its_marker_does_not_reorder_the_other() -> None:
    merger = Merger(NONCE)  # fd 2 was closed by the user
    merger.display(1, display(1))
    merger.display(2, display(2))
    merger.feed("stdout", b"a" + marker(1) + b"b" + marker(2) + b"c")
    texts = [o.data if isinstance(o, Stream) else o for o in merger.flush()]
    assert texts == [display(1), b"b", display(2), b"c"]


def feed_all(merger: Merger, chunks: Iterable[tuple[StreamName, bytes]]) -> list[bytes]:
    outputs = [output for name, data in chunks for output in merger.feed(name, data)]
    return [o.data for o in [*outputs, *merger.flush()] if isinstance(o, Stream)]


@given(cuts, cuts)
def test_turns_between_the_streams_keep_their_order_however_they_are_read(
    out_cuts: list[int], err_cuts: list[int]
) -> None:
    out = b"1" + marker("t1") + marker("t2") + b"3" + marker("t3")
    err = marker("t1") + b"2" + marker("t2") + marker("t3") + b"4"
    roads: list[tuple[StreamName, bytes]] = [
        *(("stderr", chunk) for chunk in chunked(err, err_cuts)),
        *(("stdout", chunk) for chunk in chunked(out, out_cuts)),
    ]
    assert b"".join(feed_all(Merger(NONCE), roads)) == b"1234"
    assert not Merger(NONCE).missing


def test_turns_of_two_threads_that_crossed_hold_nothing_up() -> None:
    merger = Merger(NONCE)
    merger.feed("stdout", marker("t5") + b"a" + marker("t6") + b"b")
    passed = merger.feed("stderr", marker("t6") + b"c" + marker("t5") + b"d")
    assert written(passed, "stdout") == b"ab"
    assert written(passed, "stderr") == b"cd"


def test_a_turn_is_no_display_that_is_missing_and_is_passed_once_given_up() -> None:
    merger = Merger(NONCE)
    merger.feed("stdout", marker("t1") + b"a")
    assert not merger.missing
    assert merger.flush() == [Stream("stdout", b"a")]
    assert merger.feed("stderr", marker("t1") + b"b") == [Stream("stderr", b"b")]


def test_where_turns_do_not_count_they_are_only_taken_out() -> None:
    merger = Merger(NONCE, turns=False)
    assert merger.feed("stdout", b"a" + marker("t1") + b"b") == [
        Stream("stdout", b"a"),
        Stream("stdout", b"b"),
    ]
