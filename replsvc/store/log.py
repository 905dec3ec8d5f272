"""`EventLog`: the append-only log of every session, and the sessions' records beside it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import trio

from replsvc.config import MiB
from replsvc.store.encoding import decode, encode
from replsvc.store.feed import Feed, Feeds, Follower
from replsvc.store.output import OutputReader
from replsvc.store.pending import Append, Batch, Change, Pending

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence
    from pathlib import Path

    from replsvc.calls import Draft, Event, EventKind
    from replsvc.store.database import Database
    from replsvc.store.records import SessionRecord


class EventLog:
    """Made by `open`. All methods are for the trio thread.

    What is read or followed is on disk. Writing goes on in a thread of its own: methods that change
    something return when it is on disk, and a cancelled one is carried out all the same.
    `directory` is where the log is.
    """

    def __init__(
        self,
        database: Database,
        *,
        ring_events: int,
        ring_bytes: int,
        rings_bytes: int,
        pending_bytes: int,
    ) -> None:
        """Use `open`."""
        # `open` has imported these in a worker thread: SQLAlchemy takes a quarter of a second.
        from replsvc.store.reader import Reader  # noqa: PLC0415
        from replsvc.store.writer import Writer  # noqa: PLC0415

        self.directory = database.directory
        self._reader = Reader(database)
        self._feeds = Feeds(
            self._reader.last_seq,
            max_events=ring_events,
            max_bytes=ring_bytes,
            total_bytes=rings_bytes,
        )
        self._writer = Writer(database, self._settle, pending_bytes=pending_bytes)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path | None,
        *,
        durability: Literal["process", "power"] = "process",
        ring_events: int = 2048,
        ring_bytes: int = 8 * MiB,
        rings_bytes: int = 256 * MiB,
        pending_bytes: int = 64 * MiB,
    ) -> AsyncIterator[EventLog]:
        """Open the log in the data directory `path`, which is made if missing.

        None keeps the log in a private directory that is removed at the end. `durability` is what
        an acknowledged event survives: any crash of a process, or the loss of power too. A
        session's ring holds up to `ring_events` and `ring_bytes`, all rings together `rings_bytes`;
        `room` waits while `pending_bytes` or more wait to be written.

        Leaving writes what was appended, even when cancelled, and ends all followers.

        Raises `StorageError` when the directory can't be used, is used by another process, or holds
        a damaged or newer log; then nothing is left open.
        """
        if ring_events < 1:
            raise ValueError("ring_events must be at least 1")
        database = await trio.to_thread.run_sync(_open_database, path, durability)
        try:
            log = cls(
                database,
                ring_events=ring_events,
                ring_bytes=ring_bytes,
                rings_bytes=rings_bytes,
                pending_bytes=pending_bytes,
            )
            try:
                yield log
            finally:
                await log._writer.aclose()
                log._feeds.end_all()
                await log._reader.aclose()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(database.close)

    # Events

    def append(self, session_id: str, drafts: Sequence[Draft]) -> Append:
        """Hand over events to be written, all or none, in their order; returns at once.

        Appends of one session are numbered in the order of these calls. Await the result's `wait`
        for the numbered events or the error. Before appending what a kernel says, await `room`.

        Raises `ValueError` for data that isn't plain JSON, `StorageError` once the log is closed.
        """
        pending = Append(session_id, drafts)
        self._writer.submit(pending)
        return pending

    async def room(self, session_id: str) -> None:
        """Wait until less than `pending_bytes` wait to be written, and little of this session's.

        That is so until the next checkpoint, so append before one.
        """
        await self._writer.room(session_id)

    @property
    def pending_bytes(self) -> int:
        """How much waits to be written, roughly."""
        return self._writer.pending_bytes

    async def read(
        self,
        session_id: str,
        after: int = 0,
        *,
        call_id: str | None = None,
        kinds: Collection[EventKind] | None = None,
        limit: int = 1000,
    ) -> tuple[Event, ...]:
        """Committed events after number `after`, of one call, of some kinds.

        At most `limit`, and no more once they hold 8 MiB: go on after the last one until there are
        none. A session that isn't in the log has none. Raises `StorageError`.
        """
        events, _ = await self._reader.page(
            session_id, after, call_id=call_id, kinds=kinds, limit=limit
        )
        return events

    async def find(self, session_id: str, call_id: str, kind: EventKind) -> Event | None:
        """The call's latest event of that kind, None without one. Raises `StorageError`."""
        return await self._reader.latest(session_id, call_id, kind)

    async def feed(self, session_id: str) -> Feed:
        """The session's feed, with its `last_seq`.

        Raises `SessionNotFoundError` for a session that isn't in the log, and `StorageError`.
        """
        feed = self._feeds.get(session_id)
        await feed.load()
        return feed

    def follow(self, session_id: str, after: int = 0, *, call_id: str | None = None) -> Follower:
        """Iterate over committed events after number `after`, of one call if named, as they come.

        Iteration ends when the session is forgotten: `read` one that was forgotten before.
        """
        return Follower(self._feeds.get(session_id), self._reader.page, after, call_id)

    def forget(self, session_id: str) -> None:
        """Let go of what is kept in memory of a session that has ended, after its last append.

        Its followers end when they have seen the rest. The log keeps its events, and everything
        here still works for it.
        """
        self._writer.forget(session_id)

    def output_bytes(self, session_id: str, call_id: str) -> OutputReader:
        """Iterate over the bytes that the call's `output` events hold."""
        return OutputReader(self._reader, session_id, call_id)

    # Sessions' records

    async def create_session(self, record: SessionRecord) -> SessionRecord:
        """Keep a new session; events can be appended to it from now on.

        Raises `ConflictError` when its id is taken, `ValueError` for a spec that isn't plain JSON,
        and `StorageError`.
        """
        return await self.begin_session(record).wait()

    def begin_session(self, record: SessionRecord) -> Pending[SessionRecord]:
        """As `create_session`, but returns at once: await the result's `wait`.

        What is appended or changed after this call is written after the new session, or fails
        with it.
        """
        text = encode(record.spec, f"The spec of session {record.id!r}")
        kept = record.model_copy(update={"spec": decode(text)})
        return self._writer.create_session(kept, text)

    async def update_session(
        self, session_id: str, *, state: str | None = None, spec: dict[str, Any] | None = None
    ) -> SessionRecord:
        """Change what is given, and get the whole record, with a new `updated_at`.

        Raises `SessionNotFoundError`, `ValueError` for a spec that isn't plain JSON, and
        `StorageError`.
        """
        changed = {} if state is None else {"state": state}
        if spec is not None:
            changed["spec"] = encode(spec, f"The spec of session {session_id!r}")
        return await self._writer.update_session(session_id, changed).wait()

    async def session(self, session_id: str) -> SessionRecord:
        """One session's record. Raises `SessionNotFoundError` and `StorageError`."""
        return await self._reader.session(session_id)

    async def sessions(
        self, tenant: str | None = None, states: Collection[str] | None = None
    ) -> tuple[SessionRecord, ...]:
        """All records, of one tenant, in some states; oldest first. Raises `StorageError`."""
        return await self._reader.sessions(tenant, states)

    async def delete_session(self, session_id: str) -> None:
        """Delete a session's record and its events; its followers end.

        Raises `SessionNotFoundError` and `StorageError`.
        """
        await self._writer.delete_session(session_id).wait()

    # Inside

    def _settle(self, batch: Batch) -> None:
        for pending in batch.pendings:
            if pending.error is not None:
                continue
            if isinstance(pending, Append) and pending.entries:
                self._feeds.publish(pending)
                if pending.then is not None:
                    pending.then()
            elif isinstance(pending, Change) and pending.ends:
                self._feeds.end(pending.session_id)
        for session_id in batch.forgotten:
            self._feeds.end(session_id)


def _open_database(path: Path | None, durability: Literal["process", "power"]) -> Database:
    """In a worker thread: import what takes long, and open."""
    from replsvc.store import reader, writer  # noqa: F401, PLC0415 - imported here, used by `EventLog`
    from replsvc.store.database import Database  # noqa: PLC0415 - see above

    return Database(path, durability)
