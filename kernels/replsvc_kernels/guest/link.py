"""The descriptor that the host gave us: the key, each cell's pipes, and word of the host's end.

Only the standard library is used here: it is what reports that everything else is missing. The
guest never sends a descriptor; those it receives are close-on-exec, and dropped in forked children.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import sys
from typing import Any, Callable, NamedTuple

from .spares import Spares, give_up
from .versions import WANTED

MAX_PACKET = 65536


class Pair(NamedTuple):
    """The write ends of one cell's two pipes."""

    number: int
    out: int
    err: int


class PairLost(ValueError):  # noqa: N818
    """Raised for a number that was passed by, or never sent: the host's fault, not the user's."""


class HostLink:
    """The guest's end of the host's socket, for the main thread; only `watch` serves another."""

    def __init__(self, fd: int) -> None:
        self.adopt: Callable[[dict[str, Any]], None] = _refuse
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._socket.setblocking(True)
        self._next: Pair | None = None
        self._passed = 0
        self._lost = False
        self.spares = Spares()
        self._watch: Any = None

    def hello(self) -> tuple[dict[str, Any], Pair]:
        """Wait for the host's first packet: its JSON, and the pipes for what no cell prints."""
        message, pair = self._receive()
        if pair is None:
            raise PairLost("the host's first packet came without its two descriptors")
        return message, pair

    def ready(self, **facts: Any) -> None:
        """Tell the host that the sockets are bound."""
        self._socket.send(json.dumps({"ready": True, "pid": os.getpid(), **facts}).encode())

    def refuse(self, error: BaseException) -> None:
        """Tell the host in one line why there will be no kernel; it may be gone."""
        line = f"{type(error).__name__}: {error}" if not hasattr(error, "untested") else str(error)
        if isinstance(error, ImportError):
            line = (
                f"The kernel needs ipykernel, and it can't be imported here ({error}). "
                f"Install it: {sys.executable} -m pip install '{WANTED}'"
            )
        text = " ".join(line.split())[:2000]
        reason = {"error": text, "untested": getattr(error, "untested", None)}
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"ready": False, **reason}).encode())

    def take(self, number: int) -> Pair:
        """The pair called `number`, waiting for it; earlier ones that nobody asked for are closed.

        Raises `PairLost` when it was taken before, or a later one is next. Ends the process when it
        can have no descriptors: no cell could run in it any more.
        """
        if number <= self._passed:
            raise PairLost(f"output pipes {number} are gone; {self._passed} were taken")
        while True:
            if self._lost:
                give_up()
            pair, self._next = self._next, None
            if pair is None:
                pair = self._receive()[1]
            if pair is None:
                continue
            self._passed = pair.number
            if pair.number == number:
                return pair
            if pair.number > number:
                self._next, self._passed = pair, number
                raise PairLost(f"output pipes {number} are gone; the next are {pair.number}")
            os.close(pair.out)
            os.close(pair.err)

    def prefetch(self) -> None:
        """Take the next pair off the socket if it is there, so that the next cell need not wait."""
        if self._next is None:
            try:
                self._next = self._receive(socket.MSG_DONTWAIT)[1]
            except BlockingIOError:
                return

    def watch(self, loop: Any) -> None:
        """End this process when the host's end closes. `loop` is the control thread's."""
        # an epoll set with no events reports hang-ups alone: a pair that waits unread wakes nobody
        self._watch = select.epoll()
        self._watch.register(self._socket.fileno(), 0)
        loop.call_soon_threadsafe(loop.add_reader, self._watch.fileno(), os._exit, 1)

    def drop(self) -> None:
        """Let go of everything, in a forked child: its copies would hide ends of file."""
        if self._next is not None:
            os.close(self._next.out)
            os.close(self._next.err)
            self._next = None
        if self._watch is not None:
            self._watch.close()
        self._socket.close()

    def _receive(self, flags: int = 0) -> tuple[dict[str, Any], Pair | None]:
        descriptors = array.array("i")
        size = socket.CMSG_SPACE(2 * descriptors.itemsize)
        # Nothing is let go of while there is nothing to be received.
        self._socket.recv(1, flags | socket.MSG_PEEK)
        with self.spares:
            data, ancillary, _, _ = self._socket.recvmsg(
                MAX_PACKET, size, flags | socket.MSG_CMSG_CLOEXEC
            )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                usable = len(payload) - len(payload) % descriptors.itemsize
                descriptors.frombytes(payload[:usable])
        if not data:
            os._exit(1)  # the host is gone, and with it whoever would want anything from us
        message = json.loads(data)
        if (session := message.get("adopt")) is not None:
            self.adopt(session)
        if len(descriptors) != 2:
            for fd in descriptors:
                os.close(fd)
            # Sent with the packet, and there was no room for them here.
            self._lost = "pair" in message
            return message, None
        return message, Pair(int(message.get("pair", 0)), descriptors[0], descriptors[1])


def _refuse(_session: dict[str, Any]) -> None:
    raise RuntimeError("this kernel belongs to a session already")
