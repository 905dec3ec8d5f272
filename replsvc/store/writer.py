"""One thread that writes: batches in, one transaction each, all waiters woken at once.

While a batch is being committed the next one fills, so the busier the log, the larger its commits.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from sqlalchemy import Connection, insert
from sqlalchemy.dialects.sqlite import dialect

from replsvc.errors import StorageError
from replsvc.store import queries
from replsvc.store.faults import storage_error
from replsvc.store.pending import Append, Batch, Change, Pending
from replsvc.store.schema import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from replsvc.store.database import Database
    from replsvc.store.records import SessionRecord

T = TypeVar("T")

# Compiled once: Core's own path costs as much again as the whole of a small commit.
_COLUMNS = ("session_id", "seq", "call_id", "kind", "at", "data", "blob")
_INSERT = str(
    insert(events).compile(dialect=dialect(paramstyle="qmark"), column_keys=list(_COLUMNS))
)


# What one session may have waiting to be written, before it has to wait.
SESSION_PENDING_BYTES = 1024 * 1024

_FULL = {"sqlite": "SQLITE_FULL"}


@contextmanager
def _driven(connection: Connection) -> Iterator[None]:
    """A transaction of inserts only, without Core: its share of a small one is a third.

    What knows that the database is SQLite is in here and in `Transaction.flush`.
    """
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN IMMEDIATE")
    try:
        yield
        driver.execute("COMMIT")
    except BaseException:
        # Some faults have ended it already.
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        raise


class Transaction:
    """One transaction under way: it numbers events, and gathers their rows for one insert."""

    def __init__(self, connection: Connection, known: dict[str, int]) -> None:
        self.connection = connection
        self.rows: list[tuple[Any, ...]] = []
        self.last: dict[str, int] = {}
        self._known = known

    def number(self, session_id: str, count: int) -> int:
        """The first of `count` consecutive numbers. Raises `SessionNotFoundError`."""
        last = self.last.get(session_id)
        if last is None:
            last = self._known.get(session_id)
        if last is None:
            last = queries.last_seq(self.connection, session_id)
        self.last[session_id] = last + count
        return last + 1

    def renumber(self, session_id: str) -> None:
        """Ask the database for the session's last number when it is next needed."""
        self.last.pop(session_id, None)
        self._known.pop(session_id, None)

    def flush(self) -> None:
        """Insert the rows gathered so far."""
        if self.rows:
            driver: Any = self.connection.connection.driver_connection
            driver.executemany(_INSERT, self.rows)
            self.rows = []


class Writer:
    """The writer's thread, and its door on the trio thread.

    `settle` is called on the trio thread with every batch, right before its waiters wake.
    """

    def __init__(
        self, database: Database, settle: Callable[[Batch], None], *, pending_bytes: int
    ) -> None:
        self._database, self._settle = database, settle
        self._cap, self.pending_bytes = pending_bytes, 0
        self._session_bytes: dict[str, int] = {}
        self._room: trio.Event | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._lock = threading.Lock()  # around `_open`, held for a few instructions
        self._open: Batch | None = None
        self._closed = False
        self._finished = trio.Event()
        self._connection: Connection | None = None
        self._known: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="replsvc-log", daemon=True)
        self._thread.start()

    def submit(self, pending: Pending[Any]) -> None:
        """Put it in the open batch. Raises `StorageError` once the log is closed."""
        if self._closed:
            raise StorageError("The event log is closed.")
        with self._lock:
            batch, fresh = self._batch()
            pending.batch = batch
            batch.pendings.append(pending)
        if pending.size:
            self.pending_bytes += pending.size
            held = self._session_bytes.get(pending.session_id, 0)
            self._session_bytes[pending.session_id] = held + pending.size
        if fresh:
            self._queue.put(batch)

    def create_session(self, record: SessionRecord, spec: str) -> Pending[SessionRecord]:
        """See `queries.create_session`."""
        return self._change(record.id, partial(queries.create_session, record=record, spec=spec))

    def update_session(self, session_id: str, changed: dict[str, str]) -> Pending[SessionRecord]:
        """See `queries.update_session`."""
        return self._change(
            session_id, partial(queries.update_session, session_id=session_id, changed=changed)
        )

    def delete_session(self, session_id: str) -> Pending[None]:
        """See `queries.delete_session`."""
        return self._change(
            session_id, partial(queries.delete_session, session_id=session_id), ends=True
        )

    def forget(self, session_id: str) -> None:
        """Drop what is kept of the session, after everything that was submitted before."""
        if self._closed:
            return
        with self._lock:
            batch, fresh = self._batch()
            batch.forgotten.append(session_id)
        if fresh:
            self._queue.put(batch)

    async def room(self, session_id: str) -> None:
        """Wait until fewer bytes are pending than may be; true until the next checkpoint.

        A session's own share is small: what stands before its neighbours in the queue is what they
        wait for.
        """
        await trio.lowlevel.checkpoint()
        while (
            self.pending_bytes >= self._cap
            or self._session_bytes.get(session_id, 0) >= SESSION_PENDING_BYTES
        ):
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    async def aclose(self) -> None:
        """Refuse what is new, write what was submitted, and end the thread. Not cancellable."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        with trio.CancelScope(shield=True):
            await self._finished.wait()
        self._thread.join()

    def _change(
        self, session_id: str, change: Callable[[Connection], T], *, ends: bool = False
    ) -> Pending[T]:
        pending = Change(session_id, change, ends=ends)
        self.submit(pending)
        return pending

    def _batch(self) -> tuple[Batch, bool]:
        if self._open is not None:
            return self._open, False
        self._open = Batch()
        return self._open, True

    # On the trio thread, from the writer's.

    def _settled(self, batch: Batch) -> None:
        for pending in batch.pendings:
            if pending.size:
                self.pending_bytes -= pending.size
                left = self._session_bytes[pending.session_id] - pending.size
                if left:
                    self._session_bytes[pending.session_id] = left
                else:
                    del self._session_bytes[pending.session_id]
        self._settle(batch)
        batch.settled.set()
        # Each refers to its batch: what they hold would stay until the garbage collector runs.
        batch.pendings.clear()
        if self._room is not None:
            self._room.set()
            self._room = None

    # In the writer's thread.

    def _run(self) -> None:
        try:
            while (batch := self._queue.get()) is not None:
                with self._lock:
                    self._open = None  # it is this one: a new one is opened only after this
                healthy = self._commit(batch.pendings) if batch.pendings else True
                for session_id in batch.forgotten:
                    self._known.pop(session_id, None)
                self._token.run_sync_soon(self._settled, batch)
                if not healthy:
                    self._disconnect()
            self._disconnect()
            self._token.run_sync_soon(self._finished.set)
        except trio.RunFinishedError:
            # The run ended without closing the log: nobody is left to tell, or to write for.
            self._disconnect()

    def _commit(self, pendings: Sequence[Pending[Any]]) -> bool:
        """Commit all, or else halves, down to the single ones that fail.

        False when one failed in a way that a new connection might mend.
        """
        try:
            self._transact(pendings)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            fault = error
        else:
            return True
        if len(pendings) == 1:
            told = storage_error(fault, "written", self._database.directory)
            pendings[0].error = told
            return not isinstance(told, StorageError) or told.details == _FULL
        middle = len(pendings) // 2
        first = self._commit(pendings[:middle])
        return self._commit(pendings[middle:]) and first

    def _transact(self, pendings: Sequence[Pending[Any]]) -> None:
        if self._connection is None:
            self._connection = self._database.connect()
        transaction = Transaction(self._connection, self._known)
        plain = all(isinstance(p, Append) and p.session_id in self._known for p in pendings)
        try:
            with _driven(self._connection) if plain else self._connection.begin():
                for pending in pendings:
                    pending.write(transaction)
                transaction.flush()
        except BaseException:
            # A commit that failed may not be undone everywhere: take the database's word next time.
            for session_id in transaction.last:
                self._known.pop(session_id, None)
            if self._connection.in_transaction() or self._connection.invalidated:
                self._disconnect()
            raise
        self._known.update(transaction.last)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # noqa: BLE001 - what it held is on disk or was refused
                connection.invalidate()
