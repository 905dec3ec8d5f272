"""What waits to be written: appends and changes, and how their outcome is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import trio

from replsvc.calls import Draft, Event, EventKind, utc_now
from replsvc.store.encoding import encode, encode_only, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from replsvc.store.writer import Transaction

T = TypeVar("T")

_OVERHEAD_BYTES = 512
"""What an event costs in memory besides its data, roughly."""


class Batch:
    """Pendings that are committed together. `settled` is set, on the trio thread, when all are."""

    __slots__ = ("forgotten", "pendings", "settled")

    def __init__(self) -> None:
        self.pendings: list[Pending[Any]] = []
        self.forgotten: list[str] = []
        self.settled = trio.Event()


class Pending(Generic[T]):
    """Something handed to the writer. It is written whether or not anybody waits for it.

    The writer's thread sets `value` or `error` before the batch is settled; until then they mean
    nothing.
    """

    __slots__ = ("batch", "error", "session_id", "size", "value")

    batch: Batch
    value: T

    def __init__(self, session_id: str, size: int = 0) -> None:
        self.session_id, self.size = session_id, size
        self.error: Exception | None = None

    async def wait(self) -> T:
        """Wait until it is on disk; for an append, the events with their numbers.

        Raises `StorageError` when it could not be written (then nothing of it was), and
        `SessionNotFoundError` when its session isn't in the log. Cancelled, it is written all the
        same. May be called any number of times.
        """
        await self.batch.settled.wait()
        if self.error is not None:
            raise self.error
        return self.value

    def write(self, transaction: Transaction) -> None:
        """Write it, in the writer's thread; whatever is raised fails this pending alone."""
        raise NotImplementedError


class _Row(NamedTuple):
    kind: EventKind
    call_id: str | None
    text: str
    data: dict[str, Any]
    blob: bytes | None
    size: int
    seq_of: int | None


class Append(Pending[tuple[Event, ...]]):
    """Events for one session, written all or none, in their order."""

    __slots__ = ("at", "rows")

    def __init__(self, session_id: str, drafts: Sequence[Draft]) -> None:
        """Raises `ValueError` for data that isn't plain JSON."""
        self.at: datetime = utc_now()
        self.rows: list[_Row] = []
        total = 0
        for draft in drafts:
            text, data = encode(draft.data, f"The data of a {draft.kind!r} event")
            size = len(text) + len(draft.blob or b"") + _OVERHEAD_BYTES
            total += size
            row = _Row(draft.kind, draft.call_id, text, data, draft.blob, size, draft.seq_of)
            self.rows.append(row)
        super().__init__(session_id, total)

    def write(self, transaction: Transaction) -> None:
        """Number the events and put them among the transaction's rows."""
        session_id, at = self.session_id, self.at
        first = transaction.number(session_id, len(self.rows))
        micros = to_micros(at)
        events = []
        for seq, row in enumerate(self.rows, first):
            text = row.text
            if row.seq_of is not None:
                row.data["call"]["seq"] = first + row.seq_of
                text = encode_only(row.data, "The end of a call")
            transaction.rows.append(
                (session_id, seq, row.call_id, row.kind, micros, text, row.blob)
            )
            events.append(
                Event(
                    seq=seq,
                    kind=row.kind,
                    call_id=row.call_id,
                    at=at,
                    data=row.data,
                    blob=row.blob,
                )
            )
        self.value = tuple(events)


class Change(Pending[T]):
    """A change of one session's record; `ends` when it takes the session's events away."""

    __slots__ = ("change", "ends")

    def __init__(
        self, session_id: str, change: Callable[[Connection], T], *, ends: bool = False
    ) -> None:
        super().__init__(session_id)
        self.change, self.ends = change, ends

    def write(self, transaction: Transaction) -> None:
        """Make the change after everything that was handed over before it."""
        transaction.flush()
        self.value = self.change(transaction.connection)
        transaction.renumber(self.session_id)
