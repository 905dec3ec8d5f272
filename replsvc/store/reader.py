"""Questions to the database, asked in worker threads, a bounded number at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from replsvc.errors import StorageError
from replsvc.store import queries
from replsvc.store.database import READERS, Database
from replsvc.store.faults import storage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Connection

    from replsvc.calls import Event
    from replsvc.store.records import SessionRecord

T = TypeVar("T")


class Reader:
    """Answers are what is committed at that moment; asking blocks nobody.

    Every method raises `StorageError`, and a cancellation takes effect when the answer is there.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._limiter = trio.CapacityLimiter(READERS)
        self._closed = False

    async def page(
        self,
        session_id: str,
        after: int,
        *,
        upto: int | None = None,
        call_id: str | None = None,
        kinds: Collection[str] | None = None,
        limit: int,
    ) -> tuple[tuple[Event, ...], bool]:
        """See `queries.page`."""
        return await self._ask(
            partial(
                queries.page,
                session_id=session_id,
                after=after,
                upto=upto,
                call_id=call_id,
                kinds=kinds,
                limit=limit,
            )
        )

    async def latest(self, session_id: str, call_id: str, kind: str) -> Event | None:
        """See `queries.latest`."""
        return await self._ask(
            partial(queries.latest, session_id=session_id, call_id=call_id, kind=kind)
        )

    async def last_seq(self, session_id: str) -> int:
        """See `queries.last_seq`."""
        return await self._ask(partial(queries.last_seq, session_id=session_id))

    async def blobs(
        self, session_id: str, call_id: str, after: int
    ) -> tuple[list[bytes], int | None]:
        """See `queries.blobs`."""
        return await self._ask(
            partial(queries.blobs, session_id=session_id, call_id=call_id, after=after)
        )

    async def session(self, session_id: str) -> SessionRecord:
        """See `queries.session`."""
        return await self._ask(partial(queries.session, session_id=session_id))

    async def sessions(
        self, tenant: str | None, states: Collection[str] | None
    ) -> tuple[SessionRecord, ...]:
        """See `queries.list_sessions`."""
        return await self._ask(partial(queries.list_sessions, tenant=tenant, states=states))

    async def aclose(self) -> None:
        """Refuse new questions and wait for those under way. Not cancellable."""
        self._closed = True
        with trio.CancelScope(shield=True):
            for _ in range(READERS):
                await self._limiter.acquire_on_behalf_of(object())

    async def _ask(self, question: Callable[[Connection], T]) -> T:
        if self._closed:
            raise StorageError("The event log is closed.")
        return await trio.to_thread.run_sync(self._answer, question, limiter=self._limiter)

    def _answer(self, question: Callable[[Connection], T]) -> T:
        try:
            with self._database.reading.connect() as connection:
                return question(connection)
        except Exception as error:
            raise storage_error(error, "read", self._database.directory) from error
