"""The Jupyter wire protocol on trio, over our own end of its connections (`_zmtp`).

One reader task a channel. What comes from a kernel is hostile: signatures, sizes, nesting and types
are checked here, and everything after this file handles plain checked values.
Format: https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, NoReturn

import trio

from replsvc_kernels._zmtp import Peer, Unsent
from replsvc_kernels.backends.base import Connection
from replsvc_kernels.kernel import LaunchError, ProtocolViolation
from replsvc_kernels.messages import Limits

Channel = Literal["shell", "control", "iopub", "stdin"]
DELIMITER = b"<IDS|MSG>"
CHANNELS: tuple[Channel, ...] = ("shell", "control", "iopub", "stdin")
# What is shown comes on iopub; on the others are requests and replies.
MAX_SMALL_MESSAGE_BYTES = 8 * 1024 * 1024
# From here on a message is decoded in a thread.
LARGE_BYTES = 256 * 1024
# A value of a few bytes takes ten times as many in our memory.
MAX_JSON_VALUES = 1_000_000


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


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
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


def _too_many(raw: bytes) -> bool:
    """Whether JSON holds more values than are good for us; text in strings does not count."""
    if _separators(raw) <= MAX_JSON_VALUES:
        return False
    return _separators(_STRING.sub(b"", raw)) > MAX_JSON_VALUES


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


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
        if any(_too_many(part) for part in parts):
            raise ProtocolViolation(f"JSON of more than {MAX_JSON_VALUES} values")
        try:
            header, parent, metadata, content = (
                _decoder.decode(part.decode("utf-8", "surrogatepass")) for part in parts
            )
        except (ValueError, RecursionError) as error:
            raise ProtocolViolation(f"a message that is not JSON: {error}") from None
        if not all(isinstance(part, dict) for part in (header, parent, metadata, content)):
            raise ProtocolViolation("a message whose parts are not objects")
        deepest = self._limits.max_json_depth
        # Cheap first: most have too few brackets to be deep.
        if any(
            raw.count(b"{") + raw.count(b"[") > deepest and _too_deep(value, deepest)
            for raw, value in ((parts[2], metadata), (parts[3], content))
        ):
            raise ProtocolViolation(f"JSON nested over {self._limits.max_json_depth} deep")
        type_, parent_id = header.get("msg_type"), parent.get("msg_id", "")
        id_ = header.get("msg_id", "")
        if not (isinstance(type_, str) and isinstance(parent_id, str) and isinstance(id_, str)):
            raise ProtocolViolation("a header with wrong types")
        return Message(type_, parent_id, content, metadata, size, id_)


class Channels:
    """A client's sockets to one kernel. `receive` yields checked messages; `request` sends one."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._codec = Codec(connection.key, limits)
        identity = uuid.uuid4().bytes.replace(b"\0", b"\1")
        self._peers: dict[Channel, Peer] = {}
        try:
            # stdin from the start: a kernel asks by our name, and what it asks a stranger is lost.
            for channel in CHANNELS:
                large = channel == "iopub"
                most = limits.max_message_bytes if large else MAX_SMALL_MESSAGE_BYTES
                kind: Literal["DEALER", "SUB"] = "SUB" if large else "DEALER"
                url = connection.url(channel)
                self._peers[channel] = Peer(kind, url, identity, most)
        except (OSError, ValueError) as error:
            self.close()
            raise LaunchError(f"no sockets to the kernel can be opened: {error}") from error

    async def run(self) -> None:
        """Make the connections and keep them; returns when one breaks, as at a kernel's end."""
        async with trio.open_nursery() as nursery:

            async def watch(peer: Peer) -> None:
                await peer.lost.wait()
                nursery.cancel_scope.cancel()

            for peer in self._peers.values():
                nursery.start_soon(peer.run)
                nursery.start_soon(watch, peer)

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
            self._peers[channel].send(frames)
        except Unsent:
            raise ProtocolViolation("a kernel that does not read its requests") from None
        return id_

    async def room(self, channel: Channel) -> None:
        """Wait until what was sent there is with the kernel, or never will be."""
        await self._peers[channel].room()

    def answer(self, to: Message, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Send the `input_reply` to an `input_request`. Raises `ProtocolViolation`."""
        parent = {"msg_id": to.id, "msg_type": to.type}
        _, frames = self._codec.encode("input_reply", content, metadata, parent)
        try:
            self._peers["stdin"].send(frames)
        except Unsent:
            raise ProtocolViolation("a kernel that does not read its answers") from None

    async def receive(self, channel: Channel) -> Message:
        """The next message; one task a channel. Raises `ProtocolViolation`."""
        frames = await self._peers[channel].receive()
        if sum(map(len, frames)) < LARGE_BYTES:
            return self._codec.decode(frames)
        # It takes its time, which is no other session's.
        return await trio.to_thread.run_sync(self._codec.decode, frames)

    def close(self) -> None:
        """Close all sockets, now: nothing lingers."""
        for peer in self._peers.values():
            peer.close()

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
