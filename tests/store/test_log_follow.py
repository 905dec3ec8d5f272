from __future__ import annotations

import pytest
import trio
import trio.testing

from replsvc.calls import Draft, Event
from replsvc.errors import SessionNotFoundError
from replsvc.store import EventLog, Follower, SessionRecord


def note(n: int, call_id: str = "c1") -> Draft:
    return Draft(kind="notify", call_id=call_id, data={"n": n})


async def take(follower: Follower, count: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        found += await anext(follower)
    return found


async def rest(follower: Follower) -> list[int]:
    return [event.seq async for events in follower for event in events]


async def test_followers_that_resume_anywhere_see_all_that_follows_once(log: EventLog) -> None:
    total = 300
    seen: dict[int, list[int]] = {}

    async def follow(after: int) -> None:
        events = await take(log.follow("s1", after), total - after)
        seen[after] = [event.seq for event in events]

    async with trio.open_nursery() as nursery:
        for n in range(total):
            if n % 7 == 0:
                nursery.start_soon(follow, n)
                nursery.start_soon(follow, n // 2)
                await trio.lowlevel.checkpoint()
            log.append("s1", [note(n)])

    assert len(seen) > total // 7
    for after, seqs in seen.items():
        assert seqs == list(range(after + 1, total + 1))


async def test_a_slow_follower_falls_out_of_the_ring_and_still_sees_all() -> None:
    async with EventLog.open(None, ring_events=8) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        follower = log.follow("s1")
        await log.append("s1", [note(1)]).wait()
        seen = [event.data["n"] for event in await anext(follower)]
        for n in range(2, 1000):
            pending = log.append("s1", [note(n)])
        await pending.wait()  # nobody has waited for the follower
        feed = await log.feed("s1")
        assert feed.after(follower.cursor) is None  # so it has to read from the log

        seen += [event.data["n"] for event in await take(follower, 998)]

        assert seen == list(range(1, 1000))
        await log.append("s1", [note(1000)]).wait()
        assert feed.after(follower.cursor) is not None
        assert [event.data["n"] for event in await anext(follower)] == [1000]


async def test_an_event_larger_than_the_ring_is_followed_all_the_same() -> None:
    async with EventLog.open(None, ring_bytes=10_000) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        follower = log.follow("s1")
        for n in range(6):
            size = 20_000 if n % 2 else 10
            await log.append("s1", [Draft(kind="output", blob=bytes(size))]).wait()
        sizes = [len(event.blob or b"") for event in await take(follower, 6)]
        assert sizes == [10, 20_000] * 3


async def test_all_rings_together_are_bounded_and_followers_miss_nothing() -> None:
    async with EventLog.open(None, rings_bytes=100_000) as log:
        followers = []
        for n in range(20):
            await log.create_session(SessionRecord(id=f"s{n}", state="open"))
            followers.append(log.follow(f"s{n}"))
        for _ in range(10):
            for n in range(20):
                log.append(f"s{n}", [Draft(kind="output", blob=bytes(2_000))])
        await log.append("s0", []).wait()

        assert 0 < log._feeds.bytes <= 100_000
        held = [log._feeds.get(f"s{n}").held_bytes for n in range(20)]
        assert sum(held) == log._feeds.bytes
        for follower in followers:
            assert [event.seq for event in await take(follower, 10)] == list(range(1, 11))


async def test_a_follower_of_one_call_gets_only_that_calls_events() -> None:
    async with EventLog.open(None, ring_events=16) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        early = log.follow("s1", call_id="b")
        for n in range(1, 101):
            await log.append("s1", [note(n, "b" if n % 10 == 0 else "a")]).wait()
        late = log.follow("s1", 90, call_id="b")
        assert [event.seq for event in await take(early, 10)] == list(range(10, 101, 10))
        assert [event.seq for event in await take(late, 1)] == [100]

        # Other calls' events move the cursor on without waking the reader for nothing.
        async with trio.open_nursery() as nursery:
            got: list[Event] = []

            async def follow() -> None:
                got.extend(await anext(late))

            nursery.start_soon(follow)
            await log.append("s1", [note(101, "a")]).wait()
            await trio.testing.wait_all_tasks_blocked()
            assert (got, late.cursor) == ([], 101)
            await log.append("s1", [note(102, "b")]).wait()
        assert [event.seq for event in got] == [102]


async def test_a_follower_of_a_call_pages_through_a_long_log_of_others() -> None:
    async with EventLog.open(None, ring_events=1) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        await log.append("s1", [note(n, "ab"[n % 2]) for n in range(1, 2001)]).wait()
        events = await take(log.follow("s1", call_id="a"), 1000)
        assert [event.seq for event in events] == list(range(2, 2001, 2))


async def test_a_cancelled_follower_goes_on_where_it_was(log: EventLog) -> None:
    follower = log.follow("s1")
    await log.append("s1", [note(1)]).wait()
    for _ in range(3):
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(follower)
    assert [event.seq for event in await anext(follower)] == [1]

    async def follow() -> None:
        await anext(follower)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    await log.append("s1", [note(2)]).wait()
    assert [event.seq for event in await anext(follower)] == [2]


async def test_a_follower_from_the_future_waits_for_it(log: EventLog) -> None:
    follower = log.follow("s1", after=3)
    got: list[int] = []

    async def follow() -> None:
        got.extend(event.seq for event in await anext(follower))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        for n in range(1, 4):
            await log.append("s1", [note(n)]).wait()
            await trio.testing.wait_all_tasks_blocked()
            assert got == []
        await log.append("s1", [note(4)]).wait()
    assert got == [4]


async def test_following_a_session_that_is_not_in_the_log_is_an_error(log: EventLog) -> None:
    with pytest.raises(SessionNotFoundError):
        await anext(log.follow("nobody"))
    with pytest.raises(SessionNotFoundError):
        await log.feed("nobody")


async def test_a_feed_knows_the_last_number_and_waits_for_the_next(log: EventLog) -> None:
    assert (await log.feed("s1")).last_seq == 0
    await log.append("s1", [note(1), note(2)]).wait()
    feed = await log.feed("s1")
    assert feed.last_seq == 2
    assert await feed.wait_after(1)

    woken: list[int] = []

    async def wait() -> None:
        assert await feed.wait_after(2)
        woken.append(feed.last_seq)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert woken == []
        await log.append("s1", [note(3)]).wait()
    assert woken == [3] * 5


async def test_a_feed_of_an_earlier_run_starts_from_what_is_on_disk(tmp_path) -> None:
    async with EventLog.open(tmp_path) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        await log.append("s1", [note(n) for n in range(10)]).wait()
    async with EventLog.open(tmp_path) as log:
        follower = log.follow("s1", 4)
        await log.append("s1", [note(10)]).wait()  # published before the follower has read
        assert [event.seq for event in await take(follower, 7)] == list(range(5, 12))
        assert (await log.feed("s1")).last_seq == 11


async def test_forgetting_ends_followers_after_the_last_append(log: EventLog) -> None:
    ended: list[list[int]] = []

    async def follow() -> None:
        ended.append(await rest(log.follow("s1")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await log.append("s1", [note(1)]).wait()
        log.append("s1", [note(2), note(3)])
        log.forget("s1")
    assert ended == [[1, 2, 3]]

    # The log itself has forgotten nothing.
    assert (await log.append("s1", [note(4)]).wait())[0].seq == 4
    assert [event.seq for event in await log.read("s1")] == [1, 2, 3, 4]


async def test_closing_the_log_ends_followers(tmp_path) -> None:
    ended: list[list[int]] = []

    async def follow(follower: Follower) -> None:
        ended.append(await rest(follower))

    async with trio.open_nursery() as nursery:  # noqa: SIM117 - it outlives the log
        async with EventLog.open(tmp_path) as log:
            await log.create_session(SessionRecord(id="s1", state="open"))
            nursery.start_soon(follow, log.follow("s1"))
            await log.append("s1", [note(1)]).wait()
            await trio.testing.wait_all_tasks_blocked()
            log.append("s1", [note(2)])
    assert ended == [[1, 2]]


async def test_deleting_a_session_ends_followers_and_its_id_starts_anew(log: EventLog) -> None:
    ended: list[list[int]] = []

    async def follow() -> None:
        ended.append(await rest(log.follow("s1")))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await log.append("s1", [note(1)]).wait()
        await trio.testing.wait_all_tasks_blocked()
        await log.delete_session("s1")
    assert ended == [[1]]
    assert await log.read("s1") == ()

    late = log.append("s1", [note(2)])
    with pytest.raises(SessionNotFoundError):
        await late.wait()
    await log.create_session(SessionRecord(id="s1", state="open"))
    assert (await log.append("s1", [note(1)]).wait())[0].seq == 1
    assert [event.seq for event in await anext(log.follow("s1"))] == [1]


async def test_ten_thousand_sessions_leave_nothing_in_memory_once_forgotten() -> None:
    async with EventLog.open(None) as log:

        async def live(n: int) -> None:
            await log.create_session(SessionRecord(id=f"s{n}", state="open"))
            followers = [log.follow(f"s{n}")] if n % 20 == 0 else []
            log.append(f"s{n}", [note(1)])
            log.append(f"s{n}", [note(2)])
            log.forget(f"s{n}")
            for follower in followers:
                assert await rest(follower) == [1, 2]

        for start in range(0, 10_000, 500):
            async with trio.open_nursery() as nursery:
                for n in range(start, start + 500):
                    nursery.start_soon(live, n)

        await log.append("s0", []).wait()
        log.forget("s0")
        await log.create_session(SessionRecord(id="last", state="open"))
        assert len(await log.sessions()) == 10_001
        assert (len(log._feeds), log._feeds.bytes, log._writer._known) == (0, 0, {})

        # Looking at old sessions doesn't make them live.
        for n in range(100):
            assert (await anext(log.follow(f"s{n}")))[-1].seq == 2
        assert len(log._feeds) == 0
