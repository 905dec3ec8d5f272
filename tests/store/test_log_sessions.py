from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import trio

from replsvc.calls import Draft
from replsvc.errors import ConflictError, SessionNotFoundError
from replsvc.store import EventLog, SessionRecord


async def test_a_session_is_kept_as_it_was_given(tmp_path) -> None:
    at = datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    record = SessionRecord(
        id="s\x00\N{SNAKE}",
        tenant="acme",
        state="open",
        spec={"lone": "\ud800", "n": [1, 2.5, None, True]},
        created_at=at,
        updated_at=at,
    )
    async with EventLog.open(tmp_path) as log:
        assert await log.create_session(record) == record
    async with EventLog.open(tmp_path) as log:
        assert await log.session(record.id) == record


async def test_times_of_other_zones_and_before_1970_are_kept_exactly(log: EventLog) -> None:
    from zoneinfo import ZoneInfo

    for n, at in enumerate(
        (
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        )
    ):
        await log.create_session(SessionRecord(id=f"t{n}", state="open", created_at=at))
        found = (await log.session(f"t{n}")).created_at
        assert (found - at, found.utcoffset()) == (timedelta(0), timedelta(0))


async def test_one_of_two_identical_creations_is_a_conflict(log: EventLog) -> None:
    outcomes: list[str] = []

    async def create() -> None:
        try:
            await log.create_session(SessionRecord(id="twin", state="open"))
        except ConflictError as error:
            outcomes.append(str(error))
        else:
            outcomes.append("created")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        nursery.start_soon(create)
    assert sorted(outcomes) == ["Session 'twin' exists already. Choose another id.", "created"]


async def test_a_conflict_leaves_the_session_and_its_events_alone(log: EventLog) -> None:
    await log.append("s1", [Draft(kind="status")]).wait()
    before = await log.session("s1")
    with pytest.raises(ConflictError):
        await log.create_session(SessionRecord(id="s1", state="other", tenant="thief"))
    assert await log.session("s1") == before
    assert len(await log.read("s1")) == 1


async def test_updating_changes_what_is_given_and_the_time_of_the_change(log: EventLog) -> None:
    created = await log.create_session(SessionRecord(id="s3", state="open", spec={"a": 1}))

    stopped = await log.update_session("s3", state="stopped")
    assert (stopped.state, stopped.spec) == ("stopped", {"a": 1})
    assert (stopped.created_at, stopped.updated_at > created.updated_at) == (
        created.created_at,
        True,
    )
    respecified = await log.update_session("s3", spec={"a": 2})
    assert (respecified.state, respecified.spec) == ("stopped", {"a": 2})
    assert await log.session("s3") == respecified


async def test_sessions_are_listed_by_tenant_and_state_oldest_first(tmp_path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    async with EventLog.open(tmp_path) as log:
        for n, (tenant, state) in enumerate(
            [("a", "open"), ("b", "open"), ("a", "closed"), ("a", "stopped"), ("b", "closed")]
        ):
            at = start + timedelta(days=10 - n)
            await log.create_session(
                SessionRecord(id=f"s{n}", tenant=tenant, state=state, created_at=at)
            )

        async def ids(**how: object) -> list[str]:
            return [record.id for record in await log.sessions(**how)]  # type: ignore[arg-type]

        assert await ids() == ["s4", "s3", "s2", "s1", "s0"]
        assert await ids(tenant="a") == ["s3", "s2", "s0"]
        assert await ids(tenant="b", states={"open"}) == ["s1"]
        assert await ids(states=["closed", "stopped"]) == ["s4", "s3", "s2"]
        assert await ids(states=[]) == []


async def test_deleting_takes_the_events_of_that_session_only(log: EventLog) -> None:
    for session_id in ("s1", "s2"):
        await log.append(session_id, [Draft(kind="status", call_id="c")]).wait()
    await log.delete_session("s1")
    assert [record.id for record in await log.sessions()] == ["s2"]
    assert (await log.read("s1"), len(await log.read("s2"))) == ((), 1)


async def test_what_needs_a_session_says_that_it_is_not_there(log: EventLog) -> None:
    for attempt in (
        lambda: log.session("nobody"),
        lambda: log.update_session("nobody", state="open"),
        lambda: log.delete_session("nobody"),
    ):
        with pytest.raises(SessionNotFoundError, match="'nobody'"):
            await attempt()


async def test_a_spec_that_is_not_plain_json_is_refused(log: EventLog) -> None:
    record = SessionRecord(id="s3", state="open", spec={"bad": float("nan")})
    with pytest.raises(ValueError, match="spec of session 's3' is not plain JSON"):
        await log.create_session(record)
    with pytest.raises(ValueError, match="not plain JSON"):
        await log.update_session("s1", spec={"bad": b""})
    with pytest.raises(SessionNotFoundError):
        await log.session("s3")


async def test_records_and_events_change_in_the_order_they_were_handed_over(log: EventLog) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            log.append("s1", [Draft(kind="status")])
        nursery.start_soon(log.delete_session, "s1")
    await log.create_session(SessionRecord(id="s1", state="again"))
    assert await log.read("s1") == ()
    assert (await log.append("s1", [Draft(kind="status")]).wait())[0].seq == 1
