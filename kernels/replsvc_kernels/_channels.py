"""The Jupyter wire protocol on trio: the only host-side file that imports zmq.

One reader task a socket; whoever sends looks at the socket's state afterwards, because sending can
swallow the edge that a reader waits for. What comes from a kernel is hostile: signatures, sizes,
nesting and types are checked here, and everything after this file handles plain checked values.
Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, NoReturn

import trio
import zmq

from replsvc_kernels.backends.base import Connection
from replsvc_kernels.kernel import LaunchError, ProtocolViolation
from replsvc_kernels.messages import Limits

Channel = Literal["shell", "control", "iopub", "stdin"]
DELIMITER = b"<IDS|MSG>"
MAX_IN_A_ROW = 16
MAX_SOCKETS = 65_536  # libzmq's default of 1023 is eight sockets a kernel away from 127 kernels

_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


def _shared_context() -> zmq.Context[zmq.Socket[bytes]]:
    """One context a process; a forked child makes its own, the inherited one is unusable there."""
    context = _contexts.get(os.getpid())
    if context is None:
        context = _contexts[os.getpid()] = zmq.Context()
        context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


@dataclass(frozen=True, slots=True)
class Message:
    """One checked message: its type, its parent's id, content and metadata as plain JSON objects.

    `size` is what it took on the wire, in bytes; `id` its own, for whoever replies to it.
    """

    type: str
    parent: str
    content: Mapping[str, Any]
    metadata: Mapping[str, Any]
    size: int = 0
    id: str = ""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """1e999 is valid JSON, but as a float it is an infinity that JSON can't say again."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _too_deep(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


class Codec:
    """Signs what we send and checks what we get; knows one kernel's key."""

    def __init__(self, key: bytes, limits: Limits) -> None:
        self._hmac = hmac.new(key, digestmod=hashlib.sha256) if key else None
        self._limits = limits
        self._session = uuid.uuid4().hex
        self._count = 0

    def _sign(self, parts: list[bytes]) -> bytes:
        if self._hmac is None:
            return b""
        signature = self._hmac.copy()
        for part in parts:
            signature.update(part)
        return signature.hexdigest().encode()

    def encode(
        self,
        type_: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any],
        parent: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[bytes]]:
        """The message's id and its frames. `parent` is the header of what it replies to."""
        self._count += 1
        id_ = f"{self._session}_{self._count}"
        header = {
            "msg_id": id_,
            "msg_type": type_,
            "username": "replsvc",
            "session": self._session,
            "date": datetime.now(UTC).isoformat(),
            "version": "5.4",
        }
        parts = [json.dumps(part).encode() for part in (header, parent or {}, metadata, content)]
        return id_, [DELIMITER, self._sign(parts), *parts]

    def decode(self, frames: list[bytes]) -> Message:
        """Check and parse; raises `ProtocolViolation` for what no honest kernel sends."""
        try:
            at = frames.index(DELIMITER)
        except ValueError:
            raise ProtocolViolation("a message without delimiter") from None
        if len(frames) - at < 6 or at > 16:
            raise ProtocolViolation("a message with missing frames")
        signature, *parts = frames[at + 1 : at + 6]
        size = sum(map(len, frames))
        if size > self._limits.max_message_bytes:
            raise ProtocolViolation(f"a message over {self._limits.max_message_bytes} bytes")
        if self._hmac is not None and not hmac.compare_digest(signature, self._sign(parts)):
            raise ProtocolViolation("a message with a wrong signature")
        try:
            header, parent, metadata, content = (
                _decoder.decode(part.decode("utf-8", "surrogatepass")) for part in parts
            )
        except (ValueError, RecursionError) as error:
            raise ProtocolViolation(f"a message that is not JSON: {error}") from None
        if not all(isinstance(part, dict) for part in (header, parent, metadata, content)):
            raise ProtocolViolation("a message whose parts are not objects")
        # Cheap first: most messages are too short to be deep.
        if len(parts[3]) > self._limits.max_json_depth and _too_deep(
            content, self._limits.max_json_depth
        ):
            raise ProtocolViolation(f"JSON nested over {self._limits.max_json_depth} deep")
        type_, parent_id = header.get("msg_type"), parent.get("msg_id", "")
        id_ = header.get("msg_id", "")
        if not (isinstance(type_, str) and isinstance(parent_id, str) and isinstance(id_, str)):
            raise ProtocolViolation("a header with wrong types")
        return Message(type_, parent_id, content, metadata, size, id_)


def _connected(kind: int, url: str, identity: bytes, limits: Limits) -> zmq.Socket[bytes]:
    socket = _shared_context().socket(kind)
    try:
        socket.linger = 0
        socket.setsockopt(zmq.IDENTITY, identity)
        # Past the limit a message is refused by us, with a reason. Far past it libzmq breaks the
        # connection, unread: that is what the monitors are for.
        socket.setsockopt(zmq.MAXMSGSIZE, 2 * limits.max_message_bytes)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            # What we have not read stays with the kernel that said it.
            socket.setsockopt(zmq.RCVHWM, 200)
        # A kernel that is still starting is asked often, one that is gone ever more seldom.
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        socket.connect(url)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket


class _Socket:
    """A zmq socket on trio. Its descriptor is edge-triggered: wait only when nothing is left."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._zmq = socket
        self._fd: int = socket.fileno()
        self._waiting: trio.CancelScope | None = None
        self._in_a_row = 0

    async def receive(self) -> list[bytes]:
        # A kernel that floods us must not keep its reader from yielding.
        self._in_a_row += 1
        if self._in_a_row >= MAX_IN_A_ROW:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._zmq.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self._in_a_row = 0
            with trio.CancelScope() as self._waiting:
                await trio.lowlevel.wait_readable(self._fd)
            self._waiting = None

    def send(self, frames: list[bytes]) -> None:
        self._zmq.send_multipart(frames, zmq.NOBLOCK)
        # The send may have eaten the edge that announced a message: wake the reader to look.
        if self._waiting is not None and int(self._zmq.get(zmq.EVENTS)) & zmq.POLLIN:
            self._waiting.cancel()

    def unwatch(self) -> None:
        if not self._zmq.closed:
            self._zmq.disable_monitor()

    def close(self) -> None:
        if not self._zmq.closed:
            trio.lowlevel.notify_closing(self._fd)
            self._zmq.close(0)


class Channels:
    """A client's sockets to one kernel. `receive` yields checked messages; `request` sends one."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._codec = Codec(connection.key, limits)
        identity = uuid.uuid4().bytes.replace(b"\0", b"\1")
        kinds: dict[Channel, int] = {
            "shell": zmq.DEALER,
            "control": zmq.DEALER,
            "iopub": zmq.SUB,
            # From the start: a kernel asks by our name, and what it asks a stranger is lost.
            "stdin": zmq.DEALER,
        }
        self._sockets: dict[Channel, _Socket] = {}
        self._monitors: list[_Socket] = []
        try:
            for channel, kind in kinds.items():
                socket = _connected(kind, connection.url(channel), identity, limits)
                self._sockets[channel] = _Socket(socket)
                self._monitors.append(_Socket(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)))
        except zmq.ZMQError as error:
            self.close()
            raise LaunchError(f"no sockets to the kernel can be opened: {error}") from error

    async def disconnected(self) -> None:
        """Wait until a connection to the kernel breaks: it ended, or said what libzmq refused."""
        async with trio.open_nursery() as nursery:

            async def watch(monitor: _Socket) -> None:
                await monitor.receive()
                nursery.cancel_scope.cancel()

            for monitor in self._monitors:
                nursery.start_soon(watch, monitor)

    def request(
        self,
        channel: Literal["shell", "control"],
        type_: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Send a request; returns its message id, which its replies carry as their parent."""
        id_, frames = self._codec.encode(type_, content, metadata or {})
        try:
            self._sockets[channel].send(frames)
        except zmq.Again:
            raise ProtocolViolation("a kernel that does not read its requests") from None
        return id_

    def answer(self, to: Message, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Send the `input_reply` to an `input_request`. Raises `ProtocolViolation`."""
        parent = {"msg_id": to.id, "msg_type": to.type}
        _, frames = self._codec.encode("input_reply", content, metadata, parent)
        try:
            self._sockets["stdin"].send(frames)
        except zmq.Again:
            raise ProtocolViolation("a kernel that does not read its answers") from None

    async def receive(self, channel: Channel) -> Message:
        """The next message; one task a channel. Raises `ProtocolViolation`."""
        return self._codec.decode(await self._sockets[channel].receive())

    def close(self) -> None:
        """Close all sockets, now: nothing lingers."""
        for socket in self._sockets.values():
            # First: libzmq's own thread waits for ever to tell a monitor that nobody reads, and
            # every other socket of this process with it.
            socket.unwatch()
            socket.close()
        for monitor in self._monitors:
            monitor.close()

    def __enter__(self) -> Channels:
        """Sockets are open from construction on."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """See `close`."""
        self.close()
