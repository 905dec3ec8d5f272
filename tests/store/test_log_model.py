from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc.calls import Draft
from replsvc.store import EventLog, SessionRecord

SESSIONS = ("s1", "s2", "s3")
CALLS = ("a", "b", None)

any_text = st.text(st.characters(exclude_categories=()), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
drafts = st.lists(
    st.builds(
        Draft,
        kind=st.sampled_from(("output", "update", "status")),
        call_id=st.sampled_from(CALLS),
        data=st.dictionaries(st.text(max_size=4), plain, max_size=3),
        blob=st.none() | st.binary(max_size=600),
    ),
    max_size=5,
)
session_ids = st.sampled_from(SESSIONS)
positions = st.integers(min_value=0, max_value=40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), session_ids, drafts),
        st.tuples(st.just("append and wait"), session_ids, drafts),
        st.tuples(st.just("read"), session_ids, positions, st.sampled_from(CALLS)),
        st.tuples(st.just("follow"), session_ids, positions, st.sampled_from(CALLS)),
        st.tuples(st.just("advance"), st.integers(min_value=0, max_value=5)),
        st.tuples(st.just("forget"), session_ids),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=steps, ring_events=st.integers(1, 6), ring_bytes=st.sampled_from((1_500, 100_000)))
async def test_readers_and_followers_see_what_a_list_would_hold(
    steps: list[tuple[Any, ...]], ring_events: int, ring_bytes: int
) -> None:
    model: dict[str, list[Draft]] = {session_id: [] for session_id in SESSIONS}

    def expected(session_id: str, after: int, call_id: str | None) -> list[tuple[int, Draft]]:
        return [
            (seq, draft)
            for seq, draft in enumerate(model[session_id], 1)
            if seq > after and (call_id is None or draft.call_id == call_id)
        ]

    def same(events: Any, wanted: list[tuple[int, Draft]]) -> bool:
        return [(e.seq, e.kind, e.call_id, e.data, e.blob) for e in events] == [
            (seq, d.kind, d.call_id, d.data, d.blob) for seq, d in wanted
        ]

    async with EventLog.open(None, ring_events=ring_events, ring_bytes=ring_bytes) as log:
        for session_id in SESSIONS:
            await log.create_session(SessionRecord(id=session_id, state="open"))
        followers: list[tuple[Any, str, int, str | None, list[Any]]] = []

        async def settle() -> None:
            for session_id in SESSIONS:
                await log.append(session_id, []).wait()

        async def advance(n: int) -> None:
            follower, session_id, after, call_id, seen = followers[n]
            wanted = expected(session_id, after, call_id)
            if len(seen) < len(wanted):  # else there is nothing to wait for
                events = await anext(follower)
                assert events
                seen += events
            assert same(seen, wanted[: len(seen)])

        for step in steps:
            match step:
                case ("append", session_id, new):
                    model[session_id] += new
                    log.append(session_id, new)
                case ("append and wait", session_id, new):
                    first = len(model[session_id])
                    model[session_id] += new
                    events = await log.append(session_id, new).wait()
                    assert same(events, expected(session_id, first, None))
                case ("read", session_id, after, call_id):
                    await settle()
                    events = await log.read(session_id, after, call_id=call_id)
                    assert same(events, expected(session_id, after, call_id))
                case ("follow", session_id, after, call_id):
                    follower = log.follow(session_id, after, call_id=call_id)
                    followers.append((follower, session_id, after, call_id, []))
                case ("advance", n) if n < len(followers):
                    await advance(n)
                case ("forget", session_id):
                    log.forget(session_id)
                    await settle()
                    for follower, followed, after, call_id, seen in followers:
                        if followed == session_id:
                            seen += [event async for events in follower for event in events]
                            assert same(seen, expected(session_id, after, call_id))
                    followers = [each for each in followers if each[1] != session_id]

        for n, (_, session_id, after, call_id, seen) in enumerate(followers):
            while len(seen) < len(expected(session_id, after, call_id)):
                await advance(n)
