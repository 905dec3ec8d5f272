"""What waits to be written: appends and changes, and how their outcome is awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from replsvc.calls import Draft, Event, utc_now
from replsvc.store.encoding import decode, encode, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from replsvc.store.writer import Transaction

T = TypeVar("T")

_OVERHEAD_BYTES = 512
"""What an event costs in memory besides its data, roughly."""
UNNUMBERED = '"seq":0'
"""What stands in an end's text where the number of its call's start will."""


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
        await self.settled()
        return self.outcome()

    async def settled(self) -> None:
        """As `wait`, for whoever has no use for the outcome."""
        await self.batch.settled.wait()
        if self.error is not None:
            raise self.error

    def outcome(self) -> T:
        """What was written."""
        return self.value

    def write(self, transaction: Transaction) -> None:
        """Write it, in the writer's thread; whatever is raised fails this pending alone."""
        raise NotImplementedError


class Entry:
    """One event of an append. `event` is made when somebody asks for it: mostly nobody does."""

    __slots__ = (
        "_event",
        "_given",
        "_seq_of",
        "at",
        "blob",
        "call_id",
        "kind",
        "seq",
        "size",
        "text",
    )

    def __init__(self, draft: Draft, at: datetime) -> None:
        """Raises `ValueError` for data that isn't plain JSON."""
        what = f"The data of a {draft.kind!r} event"
        self.text = self._given = encode(draft.data, what) if draft.text is None else draft.text
        self.kind, self.call_id, self.at = draft.kind, draft.call_id, at
        self.blob, self._seq_of = draft.blob, draft.seq_of
        self.size = len(self.text) + len(draft.blob or b"") + _OVERHEAD_BYTES
        self.seq = 0
        self._event: Event | None = None

    def number(self, seq: int, first: int) -> None:
        """In the writer's thread: its own number, and that of the append's first event."""
        self.seq = seq
        if self._seq_of is not None:
            # In a string its quotes would be escaped, and the call's own number is the first.
            self.text = self._given.replace(UNNUMBERED, f'"seq":{first + self._seq_of}', 1)

    @property
    def event(self) -> Event:
        """The event as it will be read back, once it has its number."""
        if self._event is None:
            self._event = Event(
                seq=self.seq,
                kind=self.kind,
                call_id=self.call_id,
                at=self.at,
                data=decode(self.text),
                blob=self.blob,
            )
        return self._event


class Append(Pending[tuple[Event, ...]]):
    """Events for one session, written all or none, in their order."""

    __slots__ = ("_at", "entries", "then")

    def __init__(self, session_id: str, drafts: Sequence[Draft]) -> None:
        """Raises `ValueError` for data that isn't plain JSON."""
        self._at = utc_now()
        self.entries = [Entry(draft, self._at) for draft in drafts]
        self.then: Callable[[], None] | None = None
        """Called on the trio thread when it is on disk, before anybody who waits for it runs."""
        super().__init__(session_id, sum(entry.size for entry in self.entries))

    def outcome(self) -> tuple[Event, ...]:
        """The events with their numbers."""
        return tuple(entry.event for entry in self.entries)

    def write(self, transaction: Transaction) -> None:
        """Number the events and put them among the transaction's rows."""
        session_id = self.session_id
        at = to_micros(self._at)
        first = transaction.number(session_id, len(self.entries))
        for seq, entry in enumerate(self.entries, first):
            entry.number(seq, first)
            transaction.rows.append(
                (session_id, seq, entry.call_id, entry.kind, at, entry.text, entry.blob)
            )


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
