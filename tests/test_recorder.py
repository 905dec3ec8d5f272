"""From outputs to log and model view: what comes in is in the log, or counted."""

from __future__ import annotations

import json
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc.calls import Draft, Event, OutputInfo, utc_now
from replsvc.config import Limits
from replsvc.recorder import Recorder
from replsvc.redaction import Redactor
from replsvc_kernels.messages import ClearOutput, DisplayData, ExecuteResult, Output, Stream


class Kept:
    """A log that keeps its drafts."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []

    def add(self, draft: Draft) -> None:
        self.drafts.append(draft)

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()


names = st.sampled_from(["stdout", "stderr"])
pieces = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\x1b[1m", b"\xff", b"\xe2\x82\xac", b"\xe2", b"\x08"]),
    max_size=40,
).map(b"".join)
bundles = st.fixed_dictionaries(
    {"text/plain": st.text(max_size=30)}, optional={"image/png": st.text(max_size=9)}
)
outputs = st.lists(
    st.one_of(
        st.builds(Stream, names, pieces | st.binary(max_size=80)),
        st.builds(DisplayData, bundles, display_id=st.none() | st.just("x"), update=st.booleans()),
        st.builds(ExecuteResult, bundles),
        st.builds(ClearOutput, st.booleans()),
    ),
    max_size=30,
)


def record(taken: list[Output], limits: Limits) -> tuple[list[Draft], OutputInfo, Recorder]:
    kept = Kept()
    recorder = Recorder(kept, "c", limits, Redactor(()), "log of call c")  # type: ignore[arg-type]

    async def run() -> OutputInfo:
        for output in taken:
            await recorder.output(output)
        return await recorder.finish()

    return kept.drafts, trio.run(run), recorder


@settings(deadline=None)
@given(outputs, st.sampled_from([1, 50, 1_000_000]))
def test_every_byte_is_in_the_log_or_counted(taken: list[Output], max_log_bytes: int) -> None:
    limits = Limits(max_log_bytes=max_log_bytes, max_output_bytes=1_000, max_output_lines=10)
    drafts, info, recorder = record(taken, limits)
    dropped = 0
    lines = 0
    for name in ("stdout", "stderr"):
        written = b"".join(o.data for o in taken if isinstance(o, Stream) and o.name == name)
        logged = b"".join(d.blob for d in drafts if d.blob is not None and d.data["name"] == name)
        if max_log_bytes == 1_000_000:
            assert logged == written
        dropped += len(written) - len(logged)
        lines += written.count(b"\n")
    # What is shown is there as well, or counted.
    left_out = sum(sum(d.data.get("left_out", {}).values()) for d in drafts)
    assert info.dropped_bytes == dropped + left_out
    assert info.total_bytes - dropped == sum(len(d.blob) for d in drafts if d.blob is not None)
    assert info.total_bytes - dropped <= max_log_bytes
    assert info.total_lines - lines in (0, 1)
    assert info.truncated or not dropped
    assert len(info.text.encode()) <= 1_000
    json.dumps([d.data for d in drafts], allow_nan=False).encode()
    recorder.content(info.text)


def rich(drafts: list[Draft]) -> list[dict[str, Any]]:
    return [d.data for d in drafts if d.blob is None]


def test_mimebundles_are_whole_in_the_log_whatever_becomes_of_them_for_the_model() -> None:
    large = {"text/plain": "x" * 2_000_000, "application/x": {"a": [1]}}
    drafts, _, recorder = record(
        [DisplayData(large, {"m": 1}, "id"), ClearOutput(), ExecuteResult(large)], Limits()
    )
    assert [event["type"] for event in rich(drafts)] == [
        *("display_data", "clear_output", "execute_result")
    ]
    assert rich(drafts)[0]["data"] == rich(drafts)[2]["data"] == large
    assert recorder.result() == ({"application/x": {"a": [1]}}, {"text/plain": 2_000_000})


marked_streams = st.lists(
    st.tuples(names, st.sampled_from([b"a", b"\n", b"\xe2\x82\xac", b"secret", b"sec", b"ret\n"])),
    max_size=30,
)


@given(marked_streams, st.data())
@settings(max_examples=200, deadline=None)
def test_a_recorder_goes_on_where_the_log_of_a_lost_one_ends(
    said: list[tuple[Any, bytes]], data: st.DataObject
) -> None:
    """Whatever of its events was written: the log and the result are those of one recorder."""

    def recorder() -> tuple[Kept, Recorder]:
        kept = Kept()
        return kept, Recorder(kept, "c", Limits(), Redactor(("secret",)), "log of call c")  # type: ignore[arg-type]

    async def feed(recorder: Recorder, upto: dict[str, int]) -> None:
        at = {"stdout": 0, "stderr": 0}
        for name, piece in said:
            at[name] += len(piece)
            left = piece[max(0, len(piece) - (at[name] - upto.get(name, 0))) :]
            if at[name] > upto.get(name, 0):
                await recorder.output(Stream(name, left, "c", upto=at[name]))

    def whole(drafts: list[Draft]) -> dict[str, bytes]:
        return {
            name: b"".join(one.blob or b"" for one in drafts if one.data["name"] == name)
            for name in ("stdout", "stderr")
        }

    async def run() -> None:
        straight, first = recorder()
        await feed(first, {})
        until = len(straight.drafts)
        expected = await first.finish()
        written = straight.drafts[: data.draw(st.integers(0, until))]
        again, second = recorder()
        upto: dict[str, int] = {}
        for seq, draft in enumerate(written, 1):
            upto[draft.data["name"]] = draft.data["upto"]
            second.recall(
                Event(seq=seq, kind="output", at=utc_now(), data=draft.data, blob=draft.blob)
            )
        await feed(second, upto)
        output = await second.finish()
        assert whole([*written, *again.drafts]) == whole(straight.drafts)
        assert output.total_bytes == expected.total_bytes

    trio.run(run)


def test_a_recorder_that_goes_on_counts_what_was_shown_and_left_out() -> None:
    limits = Limits(max_log_bytes=10)
    kept = Kept()
    first = Recorder(kept, "c", limits, Redactor(()), "log of call c")  # type: ignore[arg-type]

    async def run() -> None:
        for text in ("12345678", "too long"):
            await first.output(DisplayData({"text/plain": text}, mark=1))
        expected = await first.finish()
        second = Recorder(Kept(), "c", limits, Redactor(()), "log of call c")  # type: ignore[arg-type]
        for seq, draft in enumerate(kept.drafts, 1):
            second.recall(Event(seq=seq, kind="output", at=utc_now(), data=draft.data))
        found = await second.finish()
        assert found.dropped_bytes == expected.dropped_bytes > 0
        assert second._shown == first._shown > 0

    trio.run(run)
