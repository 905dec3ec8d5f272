"""What has just been committed, kept at hand: a ring per session and a cursor per follower.

Publishing never waits. A follower that is further behind than the ring reaches reads from the log,
so it is slow without costing anybody anything, and misses nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import trio

from replsvc.errors import SessionNotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from replsvc.calls import Event
    from replsvc.store.pending import Append, Entry

_PAGE_EVENTS = 256


class Feed:
    """The committed end of one session's log.

    Made by `EventLog.feed`; follow it with `EventLog.follow`.
    """

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_changed",
        "_load",
        "_loaded",
        "_max_bytes",
        "_ring",
        "ended",
        "last_seq",
        "session_id",
    )

    def __init__(
        self,
        session_id: str,
        load: Callable[[str], Awaitable[int]],
        *,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self.session_id = session_id
        self.last_seq = 0
        self.ended = False
        self._ring: deque[Entry] = deque(maxlen=max_events)
        self._bytes, self._max_bytes = 0, max_bytes
        self._changed: trio.Event | None = None
        self._load, self._loaded = load, False

    @property
    def held_bytes(self) -> int:
        """What the ring holds, roughly."""
        return self._bytes

    async def load(self) -> None:
        """Learn `last_seq` from the log unless it is known. Raises `SessionNotFoundError`."""
        await trio.lowlevel.checkpoint()
        if not self._loaded:
            try:
                found = await self._load(self.session_id)
            except SessionNotFoundError:
                if not (self.last_seq or self.ended):
                    raise
                found = 0  # it was deleted meanwhile
            # Meanwhile more may have been published, or what was found is still to be published.
            self.last_seq = max(self.last_seq, found)
            self._loaded = True

    async def wait_after(self, seq: int) -> bool:
        """Wait until an event after `seq` is on disk; false when there will never be one.

        There will be none when the session was forgotten or deleted, or the log is closed. Raises
        `SessionNotFoundError` and `StorageError`.
        """
        await self.load()
        while self.last_seq <= seq:
            if self.ended:
                return False
            if self._changed is None:
                self._changed = trio.Event()
            await self._changed.wait()
        return True

    def after(self, seq: int) -> tuple[Entry, ...] | None:
        """Some consecutive events after `seq`, from the ring; None where it doesn't reach."""
        ring = self._ring
        if not ring or ring[-1].seq != self.last_seq:
            return None
        start = len(ring) - (self.last_seq - seq)
        if start < 0:
            return None
        return tuple(ring[i] for i in range(start, min(start + _PAGE_EVENTS, len(ring))))

    def publish(self, append: Append) -> int:
        """Take in what was committed; by how many bytes the ring has grown."""
        before = self._bytes
        ring = self._ring
        for entry in append.entries:
            if ring and ring[-1].seq != entry.seq - 1:
                self.clear()
            if len(ring) == ring.maxlen:
                self._drop_oldest()
            ring.append(entry)
            self._bytes += entry.size
            while self._bytes > self._max_bytes:
                self._drop_oldest()
            # A load may have been faster than this hand-over.
            self.last_seq = max(self.last_seq, entry.seq)
        self._loaded = True
        self._wake()
        return self._bytes - before

    def clear(self) -> int:
        """Empty the ring; how many bytes it held. Followers read from the log instead."""
        held, self._bytes = self._bytes, 0
        self._ring.clear()
        return held

    def end(self) -> None:
        """Nothing more will come: followers end when they have seen the rest."""
        self.ended = True
        self._wake()

    def _drop_oldest(self) -> None:
        self._bytes -= self._ring.popleft().size

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


class Feeds:
    """All feeds. One lives while its session is active (until `end`) or somebody holds it."""

    def __init__(
        self,
        load: Callable[[str], Awaitable[int]],
        *,
        max_events: int,
        max_bytes: int,
        total_bytes: int,
    ) -> None:
        self._load, self._max_events, self._max_bytes = load, max_events, max_bytes
        self._total_bytes, self._bytes = total_bytes, 0
        self._active: OrderedDict[str, Feed] = OrderedDict()  # least recently published first
        self._all: WeakValueDictionary[str, Feed] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes(self) -> int:
        """What all rings hold, roughly."""
        return self._bytes

    def get(self, session_id: str) -> Feed:
        """The session's feed; whoever follows holds on to it."""
        feed = self._all.get(session_id)
        if feed is None:
            feed = self._all[session_id] = Feed(
                session_id, self._load, max_events=self._max_events, max_bytes=self._max_bytes
            )
        return feed

    def publish(self, append: Append) -> None:
        """Give committed events to the session's feed."""
        feed = self._active[append.session_id] = self.get(append.session_id)
        self._active.move_to_end(append.session_id)
        self._bytes += feed.publish(append)
        if self._bytes > self._total_bytes:
            self._shrink()

    def end(self, session_id: str) -> None:
        """Let go of the session; its followers end when they have seen the rest."""
        active = self._active.pop(session_id, None)
        if active is not None:
            # The ring is no longer counted, but whoever is still following may finish from it.
            self._bytes -= active.held_bytes
        feed = self._all.pop(session_id, None)
        if feed is not None:
            feed.end()

    def end_all(self) -> None:
        """Let go of every session."""
        for session_id in list(self._all):
            self.end(session_id)

    def _shrink(self) -> None:
        for feed in self._active.values():
            self._bytes -= feed.clear()
            if self._bytes <= self._total_bytes:
                return


class ReadPage(Protocol):
    """How a follower reads from the log; see `queries.page`."""

    async def __call__(
        self, session_id: str, after: int, *, upto: int, call_id: str | None, limit: int
    ) -> tuple[tuple[Event, ...], bool]:
        """A page, and whether there may be more."""
        ...


class Follower:
    """Iterate to get tuples of events, each after the one before, as they are committed.

    With a `call_id` only that call's. Iteration never skips or repeats, and ends when the session
    is forgotten or deleted or the log is closed. It may be cancelled and gone on with: what was
    not returned comes next time. Nothing needs closing.
    """

    __slots__ = ("_call_id", "_cursor", "_feed", "_read")

    def __init__(self, feed: Feed, read: ReadPage, after: int, call_id: str | None) -> None:
        self._feed, self._read = feed, read
        self._cursor, self._call_id = after, call_id

    @property
    def cursor(self) -> int:
        """The number up to which everything has been returned, or is of other calls."""
        return self._cursor

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        """The next events, at least one.

        Raises `StorageError` when the log can't be read (the same may be asked again),
        `SessionNotFoundError` for a session that isn't in the log.
        """
        feed, call_id = self._feed, self._call_id
        while await feed.wait_after(self._cursor):
            entries = feed.after(self._cursor)
            if entries is not None:
                cursor = entries[-1].seq
                events = tuple(e.event for e in entries if call_id in (None, e.call_id))
            else:
                upto = feed.last_seq
                events, more = await self._read(
                    feed.session_id, self._cursor, upto=upto, call_id=call_id, limit=_PAGE_EVENTS
                )
                cursor = events[-1].seq if more else upto
            self._cursor = cursor
            if events:
                return events
        raise StopAsyncIteration
