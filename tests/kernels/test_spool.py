"""Pipes whose bytes survive their reader, and outputs that say how far they reach."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc_kernels._held import HeldMerger
from replsvc_kernels._pipes import Pair
from replsvc_kernels._spool import PIECE_BYTES, SpooledPipe
from replsvc_kernels.messages import DisplayData, Output, Stream, StreamName

NONCE = b"n0"


@pytest.fixture
def ends() -> Iterator[tuple[int, int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    spool = os.memfd_create("spool")
    yield reading, writing, spool
    for fd in (reading, writing, spool):
        os.close(fd)


def reader(ends: tuple[int, int, int], position: int = 0) -> SpooledPipe:
    return SpooledPipe(ends[0], "stdout", Pair(1), ends[2], position)


def test_what_one_reader_had_taken_is_there_for_the_next(ends: tuple[int, int, int]) -> None:
    os.write(ends[1], b"one two three")
    first = reader(ends)
    assert (first.read(4), first.read(4)) == (b"one ", b"two ")
    second = reader(ends, 4)  # of which only four bytes were kept
    assert second.waiting() == 9
    assert b"".join(second.drain()) == b"two three"
    assert second.read() is None


def test_memory_of_what_is_kept_is_given_back_and_places_stay(ends: tuple[int, int, int]) -> None:
    pipe = reader(ends)
    for _ in range(4 * PIECE_BYTES // 32_768):
        os.write(ends[1], b"x" * 32_768)
        assert pipe.read()
    before = os.fstat(ends[2]).st_blocks
    pipe.keep(3 * PIECE_BYTES + 5)
    assert os.fstat(ends[2]).st_blocks <= before // 4 + 8
    os.write(ends[1], b"end")
    assert reader(ends, 4 * PIECE_BYTES).read() == b"end"


def marker(number: int) -> bytes:
    return b"\x1b]9913;%s;%d\x07" % (NONCE, number)


segments = st.lists(
    st.one_of(st.sampled_from([b"a", b"bc\n", b"\x1b[1m", b"\x1b"]), st.integers(1, 3)), max_size=20
)


@given(segments, st.data())
@settings(max_examples=300, deadline=None)
def test_a_stream_can_be_read_again_from_where_any_of_its_outputs_reaches(
    said: list[bytes | int], data: st.DataObject
) -> None:
    """A host that kept any beginning of the outputs gets the rest, and nothing twice."""
    shown = 0
    stream = b""
    displays: list[int] = []
    for one in said:
        if isinstance(one, bytes):
            stream += one
        else:
            shown += 1
            displays.append(shown)
            stream += marker(shown)

    def run(start: int, after: int) -> list[Output]:
        merger = HeldMerger(NONCE, Pair(1, cell="c"), after, turns=after == 0)
        merger._fed = {"stdout": start, "stderr": 0}
        outputs = merger.feed("stderr", b"".join(marker(n) for n in displays))
        for number in displays:
            if number > after:
                outputs += merger.display(number, DisplayData({"text/plain": str(number)}))
        rest = stream[start:]
        while rest:
            cut = data.draw(st.integers(1, len(rest)))
            outputs += merger.feed("stdout", rest[:cut])
            rest = rest[cut:]
        return outputs + merger.flush()

    def text(outputs: list[Output], name: StreamName = "stdout") -> bytes:
        return b"".join(one.data for one in outputs if isinstance(one, Stream) and one.name == name)

    everything = run(0, 0)
    kept = everything[: data.draw(st.integers(0, len(everything)))]
    upto = max((one.upto or 0 for one in kept if isinstance(one, Stream)), default=0)
    mark = max((one.mark or 0 for one in kept if isinstance(one, DisplayData)), default=0)
    again = kept + run(upto, mark)
    assert text(again) == text(everything)
    marks = [one.mark for one in again if isinstance(one, DisplayData)]
    assert sorted(marks, key=int) == displays
