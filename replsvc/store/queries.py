"""Reading the tables and changing records: one function a question, on a connection it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, delete, insert, select, update

from replsvc.calls import Event, utc_now
from replsvc.errors import ConflictError, SessionNotFoundError
from replsvc.store.encoding import decode
from replsvc.store.records import SessionRecord
from replsvc.store.schema import events, sessions

if TYPE_CHECKING:
    from collections.abc import Collection

PAGE_BYTES = 8 * 1024 * 1024
"""A page ends with the event that makes it larger than this."""
OUTPUT_PAGE_BYTES = 1024 * 1024
"""The same for pages of a call's output."""

_EVENT = select(
    events.c.seq, events.c.kind, events.c.call_id, events.c.at, events.c.data, events.c.blob
)


def last_seq(connection: Connection, session_id: str) -> int:
    """The number of the session's last event, 0 without any. Raises `SessionNotFoundError`."""
    # Two look-ups rather than a join: a join would visit every event of the session.
    newest = select(events.c.seq).where(events.c.session_id == session_id)
    row = connection.execute(newest.order_by(events.c.seq.desc()).limit(1)).first()
    if row is None:
        session(connection, session_id)
        return 0
    return int(row.seq)


def page(
    connection: Connection,
    session_id: str,
    after: int,
    *,
    upto: int | None = None,
    call_id: str | None = None,
    kinds: Collection[str] | None = None,
    limit: int,
) -> tuple[tuple[Event, ...], bool]:
    """Events after `after` (and no later than `upto`), and whether there may be more of them."""
    query = _EVENT.where(events.c.session_id == session_id, events.c.seq > after)
    if upto is not None:
        query = query.where(events.c.seq <= upto)
    if call_id is not None:
        query = query.where(events.c.call_id == call_id)
    if kinds is not None:
        query = query.where(events.c.kind.in_(sorted(kinds)))
    found: list[Event] = []
    size = 0
    with connection.execute(query.order_by(events.c.seq).limit(limit)) as rows:
        for row in rows:
            found.append(_event(row))
            size += len(row.data) + len(row.blob or b"")
            if size > PAGE_BYTES:
                return tuple(found), True
    return tuple(found), len(found) == limit


def latest(connection: Connection, session_id: str, call_id: str, kind: str) -> Event | None:
    """The last event of that kind that the call has."""
    query = _EVENT.where(
        events.c.session_id == session_id, events.c.call_id == call_id, events.c.kind == kind
    )
    row = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).first()
    return None if row is None else _event(row)


def blobs(
    connection: Connection, session_id: str, call_id: str, after: int
) -> tuple[list[bytes], int | None]:
    """What `output` events of the call hold, and the number to go on after; None at the end."""
    query = select(events.c.seq, events.c.blob).where(
        events.c.session_id == session_id,
        events.c.call_id == call_id,
        events.c.kind == "output",
        events.c.seq > after,
        events.c.blob.is_not(None),
    )
    found: list[bytes] = []
    size = 0
    with connection.execute(query.order_by(events.c.seq)) as rows:
        for row in rows:
            found.append(row.blob)
            size += len(row.blob)
            if size >= OUTPUT_PAGE_BYTES:
                return found, row.seq
    return found, None


def session(connection: Connection, session_id: str) -> SessionRecord:
    """One record. Raises `SessionNotFoundError`."""
    row = connection.execute(select(sessions).where(sessions.c.id == session_id)).first()
    if row is None:
        raise SessionNotFoundError(f"Session {session_id!r} is not in the event log.")
    return _record(row)


def list_sessions(
    connection: Connection, *, tenant: str | None = None, states: Collection[str] | None = None
) -> tuple[SessionRecord, ...]:
    """The records of a tenant (or all) in any of `states` (or all), oldest first."""
    query: Select[Any] = select(sessions)
    if tenant is not None:
        query = query.where(sessions.c.tenant == tenant)
    if states is not None:
        query = query.where(sessions.c.state.in_(sorted(states)))
    query = query.order_by(sessions.c.created_at, sessions.c.id)
    return tuple(_record(row) for row in connection.execute(query))


def create_session(connection: Connection, record: SessionRecord, spec: str) -> SessionRecord:
    """Insert a record whose spec reads `spec`. Raises `ConflictError` when the id is taken."""
    taken = connection.execute(select(sessions.c.id).where(sessions.c.id == record.id)).first()
    if taken is not None:
        raise ConflictError(f"Session {record.id!r} exists already.", hint="Choose another id.")
    connection.execute(insert(sessions).values({**record.model_dump(), "spec": spec}))
    return record


def update_session(
    connection: Connection, session_id: str, changed: dict[str, str]
) -> SessionRecord:
    """Change columns of a record; `updated_at` is now. Raises `SessionNotFoundError`."""
    connection.execute(
        update(sessions).where(sessions.c.id == session_id).values(**changed, updated_at=utc_now())
    )
    return session(connection, session_id)


def delete_session(connection: Connection, session_id: str) -> None:
    """Delete a record and the session's events. Raises `SessionNotFoundError`."""
    session(connection, session_id)
    connection.execute(delete(events).where(events.c.session_id == session_id))
    connection.execute(delete(sessions).where(sessions.c.id == session_id))


def _event(row: Any) -> Event:
    return Event(
        seq=row.seq,
        kind=row.kind,
        call_id=row.call_id,
        at=row.at,
        data=decode(row.data),
        blob=row.blob,
    )


def _record(row: Any) -> SessionRecord:
    return SessionRecord(
        id=row.id,
        tenant=row.tenant,
        state=row.state,
        spec=decode(row.spec),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
