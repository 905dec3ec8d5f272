"""One client's connection: bytes to Hypercorn's HTTP/1.1 and back.

Hypercorn's own connection also speaks HTTP/2, which any client may switch to before it has shown a
key, keeps closed connections until their idle time is over, and shields writes from cancellation,
so that a client which does not read could keep a service from stopping.
"""

from __future__ import annotations

import logging
import math

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

MAX_RECEIVE = 65536
KEEP_ALIVE_S = 75.0


class _Http1(H11Protocol):
    """HTTP/1.1, and WebSockets by upgrade, and nothing else."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Other offers to upgrade are ignored, as a server may: some clients send them always."""


class Connection:
    """Serve one client: `run` until either side ends. Cancelling closes at once."""

    def __init__(
        self, app: ASGIWrapper, config: Config, context: WorkerContext, stream: trio.SocketStream
    ) -> None:
        self._app, self._config, self._context = app, config, context
        self._stream = stream
        self._sending = trio.Lock()
        self._waiting = trio.CancelScope()
        self._idle = True
        self._idle_until = trio.current_time() + KEEP_ALIVE_S

    async def run(self) -> None:
        """Serve until either side closes or is idle for too long.

        Raises what the protocol's implementation makes of bytes it can't cope with.
        """
        socket = self._stream.socket
        async with self._stream:
            client = parse_socket_addr(socket.family, socket.getpeername())
            server = parse_socket_addr(socket.family, socket.getsockname())
            async with TaskGroup() as tasks:
                self._protocol = _Http1(
                    self._app,
                    self._config,
                    self._context,
                    tasks,
                    ConnectionState({}),
                    False,
                    client,
                    server,
                    self._send,
                )
                await self._protocol.initiate()
                await self._receive()

    def retire(self) -> None:
        """Close now if idle, else with the answer under way."""
        if self._idle:
            self._waiting.cancel()

    async def _receive(self) -> None:
        data: bytes | bytearray = b"-"
        while data:
            data = b""
            with trio.CancelScope(deadline=self._deadline()) as self._waiting:
                try:
                    data = await self._stream.receive_some(MAX_RECEIVE)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    break
            if not self._waiting.cancelled_caught:
                await self._protocol.handle(RawData(bytes(data)))
        await self._protocol.handle(Closed())
        await self._stream.aclose()

    def _deadline(self) -> float:
        if not self._idle:
            return math.inf
        if self._context.terminated.is_set():
            return -math.inf
        # From when it became idle: bytes that trickle in and make no request don't prolong it.
        return self._idle_until

    async def _send(self, event: Event) -> None:
        """What the protocol wants done."""
        if isinstance(event, RawData):
            if not event.data:  # the end of a body whose length was said
                return
            try:
                async with self._sending:
                    await self._stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self._protocol.handle(Closed())
            except trio.Cancelled:
                # Nobody knows what was sent: nothing may follow it.
                self._stream.socket.close()
                raise
        elif isinstance(event, Closed):
            await self._stream.aclose()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._idle, self._idle_until = event.idle, trio.current_time() + KEEP_ALIVE_S
            self._waiting.deadline = self._deadline()


class Connections:
    """The open connections of a service."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = ASGIWrapper(app)  # type: ignore[arg-type]  # the same protocol, typed by each
        self._config = Config()
        self._config.accesslog = None
        self._config.errorlog = logging.getLogger("replsvc.hypercorn")
        self._config.include_server_header = False
        self._config.keep_alive_max_requests = 1_000_000
        self._context = WorkerContext(None)
        self._open: set[Connection] = set()
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one client to the end. Raises as `Connection.run`."""
        connection = Connection(self._app, self._config, self._context, stream)
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def finish(self) -> None:
        """Close each connection as soon as its request is answered; wait until none is left."""
        await self._context.terminated.set()
        for connection in self._open:
            connection.retire()
        while self._open:
            await self._changed.wait()
