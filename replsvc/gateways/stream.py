"""Event streams: a cursor per client over the session's log, and responses that end with a client.

The log never waits for a client: one that reads slowly is behind, and that is all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol, TypeVar

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from replsvc.calls import Event
from replsvc.errors import ReplsvcError
from replsvc.gateways.encoding import sse
from replsvc.gateways.problem import problem
from replsvc.run import Run
from replsvc.session import Session
from replsvc_kernels.background import background_nursery

T = TypeVar("T")

HEARTBEAT_S = 15.0


class Source(Protocol):
    """Where a stream's events come from."""

    async def next(self) -> tuple[Event, ...] | None:
        """The next events, at least one; None at the end. May be cancelled and asked again."""


class SessionEvents:
    """A session's events after `after`, until the session is closed; of one call if named."""

    def __init__(self, session: Session, after: int, call_id: str | None) -> None:
        self._follower = session.log.follow(session.id, after, call_id=call_id)

    async def next(self) -> tuple[Event, ...] | None:
        """See `Source`. Raises `StorageError`."""
        return await anext(self._follower, None)


class CallEvents:
    """One call's events after `after`, until it has ended."""

    def __init__(self, session: Session, run: Run, after: int) -> None:
        self._log, self._session_id, self._run = session.log, session.id, run
        self._follower = self._log.follow(session.id, after, call_id=run.id)
        # What has ended is read: all of it is there, perhaps nothing after `after`.
        self._read_from: int | None = after if run.ended else None
        self._over = False

    async def next(self) -> tuple[Event, ...] | None:
        """See `Source`. Raises what made the service fail the call, after its events."""
        if self._over:
            return None
        events = await self._rest() if self._read_from is not None else await self._follow()
        if events:
            if any(event.kind == "call_finished" for event in events):
                self._over = True
            return events
        self._over = True
        if self._run.failure is not None:
            raise self._run.failure
        return None

    async def _follow(self) -> tuple[Event, ...]:
        with trio.CancelScope() as until_failed:
            async with background_nursery() as nursery:
                nursery.start_soon(self._watch, until_failed)
                return await anext(self._follower, ())
        self._read_from = self._follower.cursor
        return await self._rest()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """A failed call may have no `call_finished` to wait for; a finished one has."""
        await self._run.wait_ended()
        if self._run.failure is not None:
            scope.cancel()

    async def _rest(self) -> tuple[Event, ...]:
        assert self._read_from is not None
        events = await self._log.read(self._session_id, self._read_from, call_id=self._run.id)
        if events:
            self._read_from = events[-1].seq
        return events


class EventStream(Response):
    """A source's events as they come. `hold` is entered while the client is there.

    A fault of the service is told in a last event, `problem`, that has no id.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: Source,
        *,
        hold: AbstractAsyncContextManager[None] | None = None,
        heartbeat_s: float | None = None,
    ) -> None:
        super().__init__(None, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._source = source
        self._heartbeat_s = HEARTBEAT_S if heartbeat_s is None else heartbeat_s
        self._hold = nullcontext() if hold is None else hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source or the client ends."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with self._hold:
            await until_gone(receive, lambda: self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        # A first comment, so that clients and proxies see the stream begin before anything happens.
        await send({"type": "http.response.body", "body": b": events\n\n", "more_body": True})
        try:
            while True:
                events: tuple[Event, ...] | None = ()
                with trio.move_on_after(self._heartbeat_s):
                    events = await self._source.next()
                if events is None:
                    break
                frames = b"".join(map(sse, events)) or b": alive\n\n"
                await send({"type": "http.response.body", "body": frames, "more_body": True})
        except ReplsvcError as error:
            frame = b"event: problem\ndata: %b\n\n" % problem(error, scope["path"])
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ByteStream(Response):
    """Bytes of any length, read as the client takes them. A fault breaks the connection off."""

    media_type = "text/plain"

    def __init__(self, chunks: AsyncIterator[bytes], filename: str) -> None:
        super().__init__(
            None, headers={"content-disposition": f'attachment; filename="{filename}"'}
        )
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send until all is sent or the client is gone."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await until_gone(receive, lambda: self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Gone(Response):
    """What is answered to a client that is not there any more: nothing."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do nothing."""


async def until_gone(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """Do `work`, unless the client goes away first: then it is cancelled, and the result is None.

    The request's body must have been read. What `work` raises leaves as it is.
    """

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        here.cancel()

    with trio.CancelScope() as here:
        async with background_nursery() as nursery:
            nursery.start_soon(watch)
            return await work()
    return None
