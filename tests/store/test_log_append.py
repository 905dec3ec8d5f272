from __future__ import annotations

import gc
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import trio
import trio.testing

from replsvc.calls import Draft, Event
from replsvc.errors import SessionNotFoundError, StorageError
from replsvc.store import EventLog, Pending, SessionRecord

Hold = Callable[[Path], AbstractContextManager[None]]


def drafts(*texts: str, call_id: str = "c1") -> list[Draft]:
    return [Draft(kind="notify", call_id=call_id, data={"text": text}) for text in texts]


def texts(events: tuple[Event, ...]) -> list[str]:
    return [event.data["text"] for event in events]


async def everything(log: EventLog, session_id: str) -> tuple[Event, ...]:
    found: list[Event] = []
    while page := await log.read(session_id, found[-1].seq if found else 0):
        found += page
    return tuple(found)


async def test_events_are_numbered_from_one_and_read_back_as_they_were_acknowledged(
    log: EventLog,
) -> None:
    first = await log.append("s1", drafts("a", "b")).wait()
    output = Draft(kind="output", call_id="c1", data={"stream": "stdout"}, blob=b"\x00\xff\n")
    second = await log.append("s1", [output]).wait()
    other = await log.append("s2", drafts("x")).wait()

    assert [event.seq for event in first + second] == [1, 2, 3]
    assert other[0].seq == 1
    assert await log.read("s1") == first + second
    assert (await log.read("s1", after=2))[0].blob == b"\x00\xff\n"


async def test_concurrent_appends_leave_no_gap_and_keep_each_callers_order(log: EventLog) -> None:
    appenders, each = 32, 40
    acknowledged: dict[int, list[int]] = {n: [] for n in range(appenders)}

    async def append(n: int) -> None:
        for i in range(each):
            events = await log.append("s1", drafts(f"{n}:{i}", f"{n}:{i}+")).wait()
            acknowledged[n] += [event.seq for event in events]

    async with trio.open_nursery() as nursery:
        for n in range(appenders):
            nursery.start_soon(append, n)

    events = await everything(log, "s1")
    assert [event.seq for event in events] == list(range(1, 2 * appenders * each + 1))
    for n, seqs in acknowledged.items():
        assert seqs == sorted(seqs)
        expected = [f"{n}:{i}{plus}" for i in range(each) for plus in ("", "+")]
        assert [events[seq - 1].data["text"] for seq in seqs] == expected


async def test_appends_are_numbered_in_the_order_of_the_calls_not_of_the_waits(
    log: EventLog,
) -> None:
    pendings = [log.append("s1", drafts(str(n))) for n in range(50)]

    last = await pendings[-1].wait()
    first = await pendings[0].wait()

    assert (first[0].seq, last[0].seq) == (1, 50)
    assert texts(await log.read("s1")) == [str(n) for n in range(50)]


async def test_numbers_go_on_after_the_log_is_opened_again(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        await log.append("s1", drafts("a", "b")).wait()
    async with EventLog.open(tmp_path, durability="power") as log:
        assert (await log.append("s1", drafts("c")).wait())[0].seq == 3
        assert texts(await log.read("s1")) == ["a", "b", "c"]


async def test_an_append_of_nothing_waits_for_those_before_it(log: EventLog) -> None:
    log.append("s1", drafts("a"))
    assert await log.append("s1", []).wait() == ()
    assert texts(await log.read("s1")) == ["a"]


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, object(), b"bytes", {1, 2}], ids=lambda v: type(v).__name__
)
async def test_data_that_is_not_plain_json_is_refused_before_anything_changes(
    log: EventLog, value: object
) -> None:
    with pytest.raises(ValueError, match="'notify' event is not plain JSON"):
        log.append("s1", [*drafts("good"), Draft(kind="notify", data={"value": value})])

    assert log.pending_bytes == 0
    assert (await log.append("s1", drafts("next")).wait())[0].seq == 1
    assert texts(await log.read("s1")) == ["next"]


async def test_data_that_refers_to_itself_is_refused(log: EventLog) -> None:
    knot: list[object] = []
    knot.append(knot)
    with pytest.raises(ValueError, match="not plain JSON"):
        log.append("s1", [Draft(kind="notify", data={"knot": knot})])


async def test_lone_surrogates_and_nul_survive(log: EventLog) -> None:
    text = "a\ud800\x00\udfffz\N{SNAKE}"
    await log.append("s1", drafts(text)).wait()
    assert texts(await log.read("s1")) == [text]


async def test_followers_are_shown_exactly_what_readers_will_read(log: EventLog) -> None:
    shared = {"pair": (1, 2), "by_number": {1: "one"}}
    pending = log.append("s1", [Draft(kind="notify", data=shared)])
    shared["pair"] = ()  # the caller goes on using its dictionary

    acknowledged = await pending.wait()
    followed = await anext(log.follow("s1"))

    assert acknowledged == followed == await log.read("s1")
    assert followed[0].data == {"pair": [1, 2], "by_number": {"1": "one"}}


async def test_an_unknown_session_fails_its_own_append_only(
    log: EventLog, tmp_path: Path, hold_writer: Hold
) -> None:
    with hold_writer(tmp_path):
        blocked = log.append("s1", drafts("first"))
        bad = [log.append(name, drafts("lost")) for name in ("nobody", "lone\ud800surrogate")]
        good = [log.append(f"s{1 + n % 2}", drafts(str(n))) for n in range(9)]
        bad.append(log.append("nobody", drafts("lost")))

    await blocked.wait()
    with pytest.raises(SessionNotFoundError, match="nobody"):
        await bad[0].wait()
    with pytest.raises(StorageError):
        await bad[1].wait()
    with pytest.raises(SessionNotFoundError):
        await bad[2].wait()
    for pending in good:
        await pending.wait()
    assert texts(await log.read("s1")) == ["first", "0", "2", "4", "6", "8"]
    assert texts(await log.read("s2")) == ["1", "3", "5", "7"]
    for session_id in ("s1", "s2"):
        seqs = [event.seq for event in await log.read(session_id)]
        assert seqs == list(range(1, len(seqs) + 1))


async def test_a_cancelled_wait_leaves_the_append_in_the_batch(
    log: EventLog, tmp_path: Path, hold_writer: Hold
) -> None:
    with hold_writer(tmp_path):
        pending = log.append("s1", drafts("kept"))
        with trio.CancelScope() as scope:
            scope.cancel()
            await pending.wait()
        assert scope.cancelled_caught
        assert await log.read("s1") == ()

    assert texts(await pending.wait()) == ["kept"]
    assert texts(await log.read("s1")) == ["kept"]


async def test_nothing_is_visible_before_it_is_on_disk(
    log: EventLog, tmp_path: Path, hold_writer: Hold
) -> None:
    feed = await log.feed("s1")
    followed: list[str] = []

    async def follow() -> None:
        followed.extend(texts(await anext(log.follow("s1"))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        with hold_writer(tmp_path):
            pending = log.append("s1", drafts("a"))
            await trio.testing.wait_all_tasks_blocked()
            assert (followed, feed.last_seq, await log.read("s1")) == ([], 0, ())
        await pending.wait()
    assert (followed, feed.last_seq) == (["a"], 1)


async def test_what_was_written_is_let_go_without_the_garbage_collector(log: EventLog) -> None:
    def kept() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, Pending | Event)]

    gc.collect()
    # What an earlier test's traceback holds, say.
    before = kept()
    gc.disable()
    try:
        for n in range(10):
            await log.append("s1", drafts(str(n))).wait()
            log.append("s1", drafts(f"{n}, not waited for"))
        log.forget("s1")
        await log.append("s2", []).wait()
        held = [one for one in kept() if not any(one is other for other in before)]
    finally:
        gc.enable()
    assert held == []


async def test_room_waits_while_too_much_is_pending(tmp_path: Path, hold_writer: Hold) -> None:
    async with EventLog.open(tmp_path, pending_bytes=10_000) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        got_room: list[int] = []

        async def append(n: int) -> None:
            await log.room("s1")
            got_room.append(n)
            log.append("s1", [Draft(kind="output", blob=bytes(6_000))])

        async with trio.open_nursery() as nursery:
            with hold_writer(tmp_path):
                await log.room("s1")
                log.append("s1", [Draft(kind="output", blob=bytes(20_000))])
                for n in range(8):
                    nursery.start_soon(append, n)
                await trio.testing.wait_all_tasks_blocked()
                assert got_room == []
                assert log.pending_bytes > 20_000
        await log.append("s1", []).wait()

        assert sorted(got_room) == list(range(8))
        assert log.pending_bytes == 0
        assert len(await log.read("s1")) == 9


async def test_a_session_with_much_to_write_waits_alone(tmp_path: Path, hold_writer: Hold) -> None:
    async with EventLog.open(tmp_path) as log:
        for name in ("loud", "quiet"):
            await log.create_session(SessionRecord(id=name, state="open"))
        got_room: list[str] = []

        async def want(name: str) -> None:
            await log.room(name)
            got_room.append(name)

        async with trio.open_nursery() as nursery:
            with hold_writer(tmp_path):
                log.append("loud", [Draft(kind="output", blob=bytes(2 * 1024 * 1024))])
                nursery.start_soon(want, "loud")
                nursery.start_soon(want, "quiet")
                await trio.testing.wait_all_tasks_blocked()
                assert got_room == ["quiet"]
        assert got_room == ["quiet", "loud"]


async def test_closing_writes_what_was_appended_even_when_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with EventLog.open(tmp_path) as log:
            await log.create_session(SessionRecord(id="s1", state="open"))
            for n in range(500):
                log.append("s1", drafts(str(n)))
            scope.cancel()
    async with EventLog.open(tmp_path) as log:
        assert texts(await everything(log, "s1")) == [str(n) for n in range(500)]


async def test_a_closed_log_says_so(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        pending = log.append("s1", drafts("last"))
    assert texts(await pending.wait()) == ["last"]
    with pytest.raises(StorageError, match="closed"):
        log.append("s1", drafts("late"))
    with pytest.raises(StorageError, match="closed"):
        await log.read("s1")
    log.forget("s1")


async def test_an_error_inside_the_log_leaves_it_as_it_was_raised(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with EventLog.open(tmp_path):
            1 / 0  # noqa: B018


async def test_reading_selects_by_call_kind_and_number(log: EventLog) -> None:
    await log.append(
        "s1",
        [
            Draft(kind="call_started", call_id="a"),
            Draft(kind="call_started", call_id="b"),
            Draft(kind="output", call_id="a", blob=b"1"),
            Draft(kind="update", call_id="a"),
            Draft(kind="output", call_id="b", blob=b"2"),
            Draft(kind="status"),
            Draft(kind="update", call_id="a"),
            Draft(kind="call_finished", call_id="a"),
        ],
    ).wait()

    async def seqs(**how: object) -> list[int]:
        return [event.seq for event in await log.read("s1", **how)]  # type: ignore[arg-type]

    assert await seqs() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert await seqs(after=3, call_id="a") == [4, 7, 8]
    assert await seqs(kinds={"output", "status"}) == [3, 5, 6]
    assert await seqs(kinds=["update"], call_id="a", limit=1) == [4]
    assert await seqs(kinds=[]) == []
    assert await seqs(after=8) == []
    latest = await log.find("s1", "a", "update")
    assert latest is not None
    assert latest.seq == 7
    assert await log.find("s1", "b", "call_finished") is None
    assert await log.read("nobody") == ()


async def test_a_page_ends_early_rather_than_hold_much(log: EventLog) -> None:
    blob = bytes(3 * 1024 * 1024)
    for n in range(5):
        await log.append("s1", [Draft(kind="output", data={"text": str(n)}, blob=blob)]).wait()

    assert texts(await log.read("s1")) == ["0", "1", "2"]
    assert texts(await log.read("s1", after=3)) == ["3", "4"]
    assert texts(await everything(log, "s1")) == ["0", "1", "2", "3", "4"]
