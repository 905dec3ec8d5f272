"""What a cell publishes, kept until its host has it for certain: a host may be killed and return.

Only kernels that are to outlive their host have this. What was written to the pipes needs no
keeping: it stays there. Kept are the displays of the newest cell, its reply, and its idle. The next
cell's request says that all of them are safe; `kept_request` says so of some, during a cell.

`replay_request {"pair", "after"}` on the control channel has everything said again on iopub that
belongs to the cell with that pair and comes after that mark: first `replay_begin {"request",
"left_out", "from"}`, then the displays, and the reply and idle if they have been; from then on a
reply goes to iopub too, because a new host has another identity than the one that asked. `request`
is empty for a cell that has never begun.
"""

# mypy: disallow-untyped-calls=False
# ipykernel's classes carry no types

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from typing import Any, Callable

from .publish import Publisher

MOST_BYTES = 64 * 1024 * 1024


class KeepingPublisher(Publisher):
    """A publisher that hands each message to `Kept` in the order in which they leave."""

    def __init__(
        self, socket: Any, session: Any, whole: Callable[[Callable[[], None]], None], kept: Kept
    ) -> None:
        super().__init__(socket, session, whole)
        self._kept = kept
        self.lock = self._lock
        kept.publisher = self

    def send_multipart(self, parts: list[Any], copy: bool = True, **_flags: Any) -> None:
        """See the base class."""
        if os.getpid() == self._pid:
            self._whole(functools.partial(self._speak, parts, copy))

    def _speak(self, parts: list[Any], copy: bool) -> None:
        with self.lock:
            self._kept.keep(parts)
            self.say(parts, copy)

    def say(self, parts: list[Any], copy: bool = True) -> None:
        """Send a message that is not to be kept, or is already."""
        self._queue.append((parts, copy))
        self._drain()


class Kept:
    """See the module. Its state is the publisher's lock's to guard."""

    publisher: KeepingPublisher
    _lose_host: Callable[[], None]

    def __init__(self, session: Any) -> None:
        self._session = session
        self._said = threading.local()
        self._pair: Any = None
        self._request: dict[str, Any] = {}
        self._displays: deque[tuple[int, list[Any], int]] = deque()
        self._bytes = self._left_out = 0
        self._reply: tuple[Any, Any] | None = None
        self._idle = self._again = False

    def attend(self, kernel: Any) -> None:
        """See every message of `kernel`, and answer what the host asks on its control channel."""
        session = self._session
        mark, send, begin = session.mark, session.send, kernel._begin

        def marking() -> int:
            self._said.mark = number = mark()
            return int(number)

        def sending(stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None,
                    ident: Any = None, *args: Any, **named: Any) -> Any:  # fmt: skip
            sent = send(stream, msg_or_type, content, parent, ident, *args, **named)
            if os.getpid() != session.pid:
                return sent
            if msg_or_type == "execute_reply":
                self._replied(content, parent, named.get("metadata"))
            elif msg_or_type == "status" and content.get("execution_state") == "idle":
                self._idled(parent)
            return sent

        def beginning(pair: Any) -> None:
            self._begin(pair, kernel.get_parent("shell"))
            begin(pair)

        session.mark, session.send, kernel._begin = marking, sending, beginning
        self._lose_host = kernel.bridge.lose_host
        kernel.control_handlers["replay_request"] = self._replay_request
        kernel.control_handlers["kept_request"] = self._kept_request

    # From the kernel

    def _begin(self, pair: Any, request: dict[str, Any]) -> None:
        with self.publisher.lock:
            self._pair, self._request = pair, request
            self._displays.clear()
            self._bytes = self._left_out = 0
            self._reply, self._idle, self._again = None, False, False

    def keep(self, parts: list[Any]) -> None:
        """Keep a message that is about to leave, if it has a mark."""
        mark = getattr(self._said, "mark", None)
        if mark is None:
            return
        self._said.mark = None
        size = sum(len(part) for part in parts)
        self._displays.append((mark, parts, size))
        self._bytes += size
        while self._bytes > MOST_BYTES:
            # Nobody has taken them for long. The host says how many are missing.
            self._bytes -= self._displays.popleft()[2]
            self._left_out += 1

    def _replied(self, content: Any, parent: Any, metadata: Any) -> None:
        with self.publisher.lock:
            if self._is_mine(parent):
                self._reply = (content, metadata)
                if self._again:
                    self._say_reply()

    def _idled(self, parent: Any) -> None:
        with self.publisher.lock:
            self._idle = self._idle or self._is_mine(parent)

    def _is_mine(self, parent: Any) -> bool:
        mine = self._request.get("header") or {}
        asked = (parent or {}).get("header") or parent or {}
        return bool(mine) and asked.get("msg_id") == mine.get("msg_id")

    # From the host, in the control thread

    async def _replay_request(self, stream: Any, ident: Any, parent: Any) -> None:
        asked = parent["content"]
        self._lose_host()  # only the next one asks
        with self.publisher.lock:
            known = self._pair is not None and asked.get("pair") == self._pair
            request = self._request["header"]["msg_id"] if known else ""
            content = {"request": request, "from": 0, "left_out": 0}
            if known:
                self._forget(int(asked.get("after", 0)))
                first = min((mark for mark, _, _ in self._displays), default=0)
                # Bytes that stand at the mark of one that is missing must not wait for it.
                content.update({"left_out": self._left_out, "from": first * bool(self._left_out)})
            self._session.send(self.publisher, "replay_begin", content, parent)
            if known:
                self._again = True
                for _, parts, _ in self._displays:
                    self.publisher.say(parts)
                if self._reply is not None:
                    self._say_reply()
                if self._idle:
                    state = {"execution_state": "idle"}
                    self._session.send(self.publisher, "status", state, self._request)
        self._session.send(stream, "replay_reply", {}, parent, ident)

    async def _kept_request(self, _stream: Any, _ident: Any, parent: Any) -> None:
        asked = parent["content"]
        with self.publisher.lock:
            if asked.get("pair") == self._pair:
                self._forget(int(asked.get("after", 0)))

    def _forget(self, upto: int) -> None:
        # Threads take their marks before they speak, so these may be out of order.
        left = deque(one for one in self._displays if one[0] > upto)
        if len(left) != len(self._displays):
            self._displays = left
            self._bytes = sum(size for _, _, size in left)

    def _say_reply(self) -> None:
        assert self._reply is not None
        content, metadata = self._reply
        self._session.send(
            self.publisher, "execute_reply", content, self._request, metadata=metadata
        )
