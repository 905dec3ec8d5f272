"""ZMTP 3.0 on trio: our side of a connection to a kernel's ZeroMQ socket.

The kernel's side is libzmq. Ours is not: it bounds a message's frames but not their number, so that
a hostile kernel could fill our memory with one message that never ends; and its own thread stands
between every message and us. What a connection needs of the protocol is a greeting, a READY command
and frames: https://rfc.zeromq.org/spec/23/ and, for the mechanism NULL, section 4 of it.

A connection that breaks is not made anew: what was said meanwhile would be lost.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Literal

import trio

from replsvc_kernels.kernel import ProtocolViolation

# A greeting says version 3.0, NULL, and that we are no server.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
MAX_FRAMES = 32
MAX_COMMAND_BYTES = 4_096
MAX_UNSENT_BYTES = 64 * 1024 * 1024
CHUNK = 64 * 1024
# A kernel that is still starting is asked often, one that is slow ever more seldom.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.2
MAX_IN_A_ROW = 16
_NOT_YET = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN, errno.ECONNRESET)


class Unsent(Exception):  # noqa: N818 - what it tells is no fault
    """The kernel reads so little that what waits for it is over the bound."""


def address_of(url: str) -> tuple[int, str | tuple[str, int]]:
    """The address family and address of `ipc://PATH` or `tcp://IP:PORT`; raises `ValueError`."""
    scheme, _, rest = url.partition("://")
    if scheme == "ipc" and rest:
        return socket.AF_UNIX, f"\0{rest[1:]}" if rest.startswith("@") else rest
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not port.isdecimal():
        raise ValueError(f"{url!r} is no address of a kernel's channel")
    host = host.strip("[]")
    return socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port))


def frame(data: bytes, flags: int = 0) -> bytes:
    """One frame; its size takes one byte or eight."""
    if len(data) < 256:
        return bytes((flags, len(data))) + data
    return bytes((flags | LONG,)) + len(data).to_bytes(8, "big") + data


def message(frames: Sequence[bytes]) -> bytes:
    """All frames of a message."""
    last = len(frames) - 1
    return b"".join(frame(data, MORE if at < last else 0) for at, data in enumerate(frames))


def ready(kind: str, identity: bytes) -> bytes:
    """The command that ends the handshake."""
    properties = ((b"Socket-Type", kind.encode()), (b"Identity", identity))
    body = b"\5READY" + b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
        for name, value in properties
    )
    return frame(body, COMMAND)


class Reader:
    """Bytes in, whole messages out: pure, and bounded by what it is told to accept.

    `feed` takes what has come; `next` gives a message or None. Raises `ProtocolViolation`. Nothing
    is set aside for bytes that have only been announced.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._at = 0
        self._greeted = False
        self.shaken = False
        """Whether the other side has said that it is ready."""
        self._frames: list[bytes] = []
        self._size = 0

    @property
    def held_bytes(self) -> int:
        """What it holds of messages that are not whole."""
        return len(self._data) - self._at + self._size

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> list[bytes] | None:
        """The next message that is whole."""
        if not self._greeted and not self._greeting():
            return None
        while (found := self._frame()) is not None:
            flags, data = found
            if flags & COMMAND:
                self._command(data)
                continue
            if not self.shaken:
                raise ProtocolViolation("a channel that says something before it is ready")
            self._frames.append(data)
            self._size += len(data)
            if not flags & MORE:
                whole, self._frames, self._size = self._frames, [], 0
                return whole
            if len(self._frames) >= MAX_FRAMES:
                raise ProtocolViolation(f"a message of more than {MAX_FRAMES} frames")
        return None

    def _greeting(self) -> bool:
        data = self._data
        if len(data) < len(GREETING):
            if data and (data[0] != 0xFF or (len(data) > 9 and data[9] != 0x7F)):
                raise ProtocolViolation("a channel that does not speak ZMTP")
            return False
        if data[0] != 0xFF or data[9] != 0x7F or data[10] < 3:
            raise ProtocolViolation("a channel that does not speak ZMTP 3")
        if bytes(data[12:32]).rstrip(b"\0") != b"NULL":
            raise ProtocolViolation("a channel with a mechanism that is not NULL")
        self._greeted, self._at = True, len(GREETING)
        return True

    def _frame(self) -> tuple[int, bytes] | None:
        data, at = self._data, self._at
        if len(data) - at < 2:
            return None
        flags = data[at]
        if flags & LONG:
            if len(data) - at < 9:
                return None
            size, begin = int.from_bytes(data[at + 1 : at + 9], "big"), at + 9
        else:
            size, begin = data[at + 1], at + 2
        if flags & ~(MORE | LONG | COMMAND) or (flags & COMMAND and flags & MORE):
            raise ProtocolViolation("a frame with unknown flags")
        bound = MAX_COMMAND_BYTES if flags & COMMAND else self._max_bytes - self._size
        if size > bound:
            raise ProtocolViolation(f"a message over {self._max_bytes} bytes")
        if len(data) - begin < size:
            return None
        self._at = begin + size
        return flags, bytes(data[begin : self._at])

    def _command(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"READY":
            self.shaken = True
        elif name == b"ERROR":
            raise ProtocolViolation(f"a channel that refuses us: {body[6:206]!r}")
        # Others are for later versions than the one we said; they may be ignored.


class Peer:
    """One connection. `run` makes and keeps it, `receive` is for one task, `send` never waits.

    Raises `OSError` when there is no socket left, `ValueError` for an address that is none.
    """

    def __init__(
        self, kind: Literal["DEALER", "SUB"], url: str, identity: bytes, max_bytes: int
    ) -> None:
        self._family, self._address = address_of(url)
        self._reader = Reader(max_bytes)
        self._hello = bytearray(GREETING + ready(kind, identity))
        # A subscriber asks for everything.
        self._unsent = bytearray(frame(b"\1") if kind == "SUB" else b"")
        self._socket = socket.socket(self._family, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._connected = trio.Event()
        self._more, self._sent = trio.Event(), trio.Event()
        self._in_a_row = 0
        self._open = self._likely = self._ended = self._over = False
        self.lost = trio.Event()
        """Set when the connection has broken."""

    async def run(self) -> None:
        """Connect, as often as it takes; then send what could not be sent at once.

        Until cancelled, or `lost` because there is nothing to connect to. Somebody has to `receive`
        meanwhile: before the kernel's greeting was read it accepts no message.
        """
        pause_s = FIRST_PAUSE_S
        while not await self._connect():
            if self.lost.is_set():
                return
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        self._push(self._hello)
        self._connected.set()
        try:
            while True:
                if not self._open or not self._unsent:
                    self._sent.set()
                    self._more = trio.Event()
                    await self._more.wait()
                await trio.lowlevel.wait_writable(self._socket)
                self._push(self._unsent)
        finally:
            self._over = True
            self._sent.set()

    async def _connect(self) -> bool:
        code = self._socket.connect_ex(self._address)
        if code == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(self._socket)
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code not in (0, *_NOT_YET):
            self.lost.set()
            return False
        if self._family == socket.AF_UNIX:
            return code == 0
        # A port that nobody listens on yet may be given to our own end of the connection.
        if code == 0 and self._socket.getsockname() != self._socket.getpeername():
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return True
        again = socket.socket(self._family, socket.SOCK_STREAM)
        again.setblocking(False)
        self._socket.close()
        self._socket = again
        return False

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message, or keep it until it can be sent. Raises `Unsent`; then it is not kept."""
        data = message(frames)
        if len(self._unsent) + len(data) > MAX_UNSENT_BYTES:
            raise Unsent
        waits = bool(self._unsent)
        self._unsent += data
        if self._open and not waits:
            self._push(self._unsent)
            if self._unsent:
                self._more.set()

    async def room(self) -> None:
        """Wait until all is sent, or nothing more will be."""
        while self._unsent and not self._over:
            self._sent = trio.Event()
            await self._sent.wait()
        await trio.lowlevel.checkpoint()

    def _push(self, data: bytearray) -> None:
        """Send what can be sent now, and take it out of `data`."""
        try:
            while data:
                del data[: self._socket.send(data)]
        except BlockingIOError:
            return
        except OSError:
            data.clear()
            self.lost.set()

    async def receive(self) -> list[bytes]:
        """The next message; on a lost connection it waits for ever. Raises `ProtocolViolation`."""
        # A kernel that floods us must not keep its reader from yielding.
        self._in_a_row += 1
        if self._in_a_row >= MAX_IN_A_ROW:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()
        while (whole := self._reader.next()) is None:
            if not self._open and self._reader.shaken:
                self._open = True
                self._push(self._unsent)
                self._more.set()
            if self._likely and self._in_a_row < MAX_IN_A_ROW and self._take():
                self._in_a_row += 1
                continue
            self._in_a_row = 0
            await self._connected.wait()
            if self._ended:
                await trio.sleep_forever()
            await trio.lowlevel.wait_readable(self._socket)
            self._take()
        return whole

    def _take(self) -> bool:
        """Read once; whether there was something."""
        self._likely = False
        for _ in range(2):
            try:
                data = self._socket.recv(CHUNK)
            except BlockingIOError:
                return False
            except ConnectionError:
                continue  # what was said before the connection broke comes after the error
            if data:
                # Whoever fills the chunk has more to say.
                self._likely = len(data) == CHUNK
                self._reader.feed(data)
                return True
            break
        self._ended = True
        self.lost.set()
        return False

    def close(self) -> None:
        """Close the connection; nothing lingers."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
