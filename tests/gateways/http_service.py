"""A service under test, and how its tests talk to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import h11
import httpx
import trio

from replsvc.coordinator import Coordinator

KEY = "test-key"


@dataclass
class Running:
    """A service that answers at `url`."""

    url: str
    coordinator: Coordinator
    stop: trio.Event
    ended: trio.Event

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, key: str | None = KEY) -> httpx.AsyncClient:
        """A client of its own connections, with the key."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60)

    @asynccontextmanager
    async def events(
        self, path: str, *, post: Any = None, resume: int | str | None = None
    ) -> AsyncIterator[EventReader]:
        """Follow a session's events, or those of the call that `post` begins."""
        body = b"" if post is None else json.dumps(post).encode()
        headers = {
            "Host": f"127.0.0.1:{self.port}",
            "Authorization": f"Bearer {KEY}",
            "Accept": "text/event-stream",
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
        }
        if resume is not None:
            headers["Last-Event-ID"] = str(resume)
        async with await self.open_raw() as stream:
            reader = EventReader(stream)
            await reader.begin("GET" if post is None else "POST", path, headers, body)
            yield reader

    async def open_raw(self) -> trio.SocketStream:
        """A connection on which anything can be sent."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)


Start = Callable[..., AbstractAsyncContextManager[Running]]


class EventReader:
    """The server-sent events of one response: iterate for each `{id, event, data}` as it comes.

    A connection of its own, so that a test can leave it at any point, or not read at all.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._text = b""
        self.response: h11.Response

    async def begin(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """Send the request and read the response's head."""
        request = h11.Request(method=method, target=path, headers=list(headers.items()))
        data = [self._http.send(request)]
        if body:
            data.append(self._http.send(h11.Data(data=body)))
        data.append(self._http.send(h11.EndOfMessage()))
        await self.stream.send_all(b"".join(part for part in data if part))
        self.response = await self._event()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self.stream.receive_some(65536))
        return event

    def __aiter__(self) -> EventReader:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """The next frame that isn't only a comment."""
        while True:
            while b"\n\n" not in self._text:
                event = await self._event()
                if isinstance(event, h11.EndOfMessage):
                    assert not self._text, "the stream ends inside a frame"
                    raise StopAsyncIteration
                self._text += event.data
            text, _, self._text = self._text.partition(b"\n\n")
            frame: dict[str, Any] = {}
            for line in text.decode().splitlines():
                name, _, value = line.partition(": ")
                assert name not in frame, f"{name} twice in one frame"
                if name:
                    frame[name] = json.loads(value) if name == "data" else value
            if "event" in frame:
                return frame

    async def until(self, event: str, call_id: str | None = None) -> dict[str, Any]:
        """Read up to an event of this kind (of that call), and give its data."""
        async for frame in self:
            if frame["event"] == event and call_id in (None, frame["data"]["call_id"]):
                data: dict[str, Any] = frame["data"]
                return data
        raise AssertionError(f"the stream has ended without {event}")

    async def final(self, call_id: str | None = None) -> dict[str, Any]:
        """Read up to the end of the call, and give the call."""
        call: dict[str, Any] = (await self.until("call_finished", call_id))["data"]["call"]
        return call
