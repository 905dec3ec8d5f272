"""IOPub without a thread: messages leave from whoever speaks, whole and one after another."""

from __future__ import annotations

import json
import math
import numbers
import os
import threading
from collections import deque
from typing import Any, Callable

import zmq
from jupyter_client.jsonutil import json_clean, json_default
from jupyter_client.session import Session

from . import bounds, compat

MAX_HELD_CHARS = 64 * 1024
SHOWN = frozenset(("display_data", "update_display_data", "execute_result"))
COMMS = frozenset(("comm_open", "comm_msg", "comm_close"))
MARKED = frozenset(("display_data", "update_display_data", "execute_result", "clear_output"))

_encode = json.JSONEncoder(
    default=json_default, ensure_ascii=False, allow_nan=False, separators=(",", ":")
).encode


def pack(value: Any) -> bytes:
    """JSON as bytes. Lone surrogates, which no JSON reader has to accept, are shown escaped.

    NaN and infinities, which JSON lacks, are null, as a browser has it.
    """
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return _encode(_scrub(value)).encode()
    except (TypeError, ValueError):
        return _encode(json_clean(_scrub(value))).encode()


def _plain(value: Any) -> Any:
    return json.loads(pack(value))


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrub(item) for item in value]
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = float(value)
        return number if math.isfinite(number) else None
    if not isinstance(value, (int, bytes)) and hasattr(value, "__iter__"):
        return [_scrub(item) for item in value]
    return value


class GuestSession(Session):
    """Numbers display messages, with a mark at their exact place in the output.

    In a forked child every message goes nowhere: the sockets are the parent's.
    """

    mark: Callable[[], int] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._counted: Any = None
        self._count = 0
        self._brief: Any = None
        self._held: deque[tuple[Any, dict[str, Any], Any]] = deque()
        self.pack = pack
        self.none = pack({})

    def send(
        self,
        stream: Any,
        msg_or_type: Any,
        content: Any = None,
        parent: Any = None,
        ident: Any = None,
        buffers: Any = None,
        track: bool = False,
        header: Any = None,
        metadata: Any = None,
    ) -> Any:
        """Send as the base class does."""
        if os.getpid() != self.pid:
            return None
        is_message = isinstance(msg_or_type, dict)
        kind = msg_or_type.get("msg_type") if is_message else msg_or_type
        if kind in SHOWN:
            if is_message:
                shown = bounds.bounded(msg_or_type["content"], _plain)
                msg_or_type = {**msg_or_type, "content": shown}
            else:
                content = bounds.bounded(content or {}, _plain)
        elif kind in COMMS and not is_message:
            room = bounds.MAX_BUNDLE_BYTES - sum(memoryview(part).nbytes for part in buffers or ())
            why = bounds.too_much(content, room)
            if why is not None:
                raise ValueError(f"a widget's message can't be sent: it is {why}")
        if isinstance(stream, Publisher):
            asked = _id(msg_or_type["parent_header"] if is_message else parent)
            if asked is not None and asked == self._brief:
                if kind == "error":
                    return None  # the reply says it
                if kind == "execute_result" and is_message and self._may_wait(msg_or_type):
                    self._held.append((stream, self._marked(msg_or_type), ident))
                    return msg_or_type
            self.let_go()
            self._count_one(kind, content, asked)
        look_again = compat.sends_at_once(stream) if kind == "execute_reply" else None
        if look_again is not None:
            # The stream itself would send it after what comes next, the kernel's idle.
            stream = stream.socket
        if kind in MARKED and self.mark is not None:
            if is_message:
                msg_or_type = self._marked(msg_or_type)
            else:
                metadata = {**(metadata or {}), "replsvc_mark": self.mark()}
        sent = super().send(
            stream, msg_or_type, content, parent, ident, buffers, track, header, metadata
        )
        if look_again is not None:
            look_again()
        return sent

    def begin_brief(self, asked: str) -> None:
        """From now on the request `asked` is answered as `brief` says."""
        self._held.clear()
        self._counted, self._count, self._brief = asked, 0, asked

    def end_brief(self) -> tuple[dict[str, Any] | None, int]:
        """The value that was held back, if any, and how many messages were published."""
        self._brief = None
        try:
            _, message, _ = self._held.popleft()
        except IndexError:
            return None, self._count
        return {**message["content"], "mark": message["metadata"].get("replsvc_mark")}, self._count

    def let_go(self) -> None:
        """Publish the value that is held back, if any: something is to come after it."""
        try:
            stream, message, ident = self._held.popleft()
        except IndexError:
            return
        self._count_one("execute_result", None, _id(message["parent_header"]))
        super().send(stream, message, ident=ident)

    def _may_wait(self, message: dict[str, Any]) -> bool:
        """Whether a value may go with the reply: replies are small, and carry one."""
        content = message["content"]
        data = list(content["data"].values())
        return (
            not self._held
            and not content["metadata"]
            and all(isinstance(value, str) for value in data)
            and sum(map(len, data)) <= MAX_HELD_CHARS
        )

    def _marked(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with its place in the output, which is here."""
        if self.mark is None:
            return message
        metadata = {**(message.get("metadata") or {}), "replsvc_mark": self.mark()}
        return {**message, "metadata": metadata}

    def published(self, parent: Any) -> int | None:
        """How many messages were published for the request `parent` since its busy."""
        return self._count if _id(parent) == self._counted else None

    def _count_one(self, kind: Any, content: Any, asked: Any) -> None:
        if kind == "status" and (content or {}).get("execution_state") == "busy":
            self._counted, self._count = asked, 0
        if asked == self._counted:
            self._count += 1


def _id(parent: Any) -> Any:
    """The id of a request, given it or its header."""
    parent = parent or {}
    return parent.get("msg_id") or (parent.get("header") or {}).get("msg_id")


class Publisher:
    """The IOPub socket, as ipykernel's objects expect it, for all threads.

    `whole` calls a function so that no exception of a signal handler strikes inside it.
    """

    def __init__(
        self, socket: Any, session: Session, whole: Callable[[Callable[[], None]], None]
    ) -> None:
        self._socket, self._session, self._whole = socket, session, whole
        self._lock = threading.RLock()
        self._queue: deque[tuple[list[Any], bool]] = deque()
        self._pid = os.getpid()
        self._sending = False

    def send_multipart(self, parts: list[Any], copy: bool = True, **_flags: Any) -> None:
        """Send one message. In a forked child, or after `close`, it is dropped."""
        if os.getpid() != self._pid:
            return
        self._queue.append((parts, copy))
        self._whole(self._drain)

    def attend(self, loop: Any) -> None:
        """Answer subscriptions with `iopub_welcome`, on the control thread's asyncio loop."""
        fd = self._socket.getsockopt(zmq.FD)
        loop.call_soon_threadsafe(loop.add_reader, fd, self._drain)

    def close(self) -> None:
        """Close the socket; what was sent has its linger time to leave."""
        with self._lock:
            self._socket.close()

    def _drain(self) -> None:
        with self._lock:
            if self._sending:
                # a finalizer speaks while this thread is inside a message: after that one
                return
            self._sending = True
            try:
                while not self._socket.closed:
                    while self._queue:
                        parts, copy = self._queue.popleft()
                        self._socket.send_multipart(parts, copy=copy)
                    # sending may have swallowed the descriptor's edge: always look
                    if not self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                        break
                    self._welcome(self._socket.recv())
            finally:
                self._sending = False

    def _welcome(self, frame: bytes) -> None:
        if frame[:1] != b"\x01":
            return
        topic = frame[1:]
        message = self._session.msg(
            "iopub_welcome", {"subscription": topic.decode("utf-8", "replace")}
        )
        parts = self._session.serialize(message)
        self._socket.send_multipart([topic, *parts] if topic else parts)
