"""Calls of tools on their way to the host and back, from whatever thread or task makes them.

A request is published as `tool_request`; its reply comes as `tool_reply` on the control channel,
which another thread reads while the cell waits. One that nobody waits for any more is taken back
with `tool_withdrawn`, so that its host ends it and lets the clock go on.
"""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import hmac
import itertools
import json
import threading
from collections import deque
from typing import Any, Callable

from jupyter_client.session import DELIM

from .publish import pack as pack_message
from .tools import Offer, ToolError, Tools, function, pack

# So many are with the host at once, which takes no more; the others wait here.
MOST_AT_ONCE = 256
# A signal that comes just before the wait begins is seen when the wait is over.
POLL_S = 0.1
REPLY = b'"tool_reply"'


class _Call:
    """One call, from its arguments to its result. `wake` is called once, by any thread."""

    __slots__ = ("arguments", "background", "id", "is_done", "outcome", "pieces", "tool", "wake")

    def __init__(self, tool: str, arguments: bytes, wake: Callable[[], Any]) -> None:
        self.tool, self.arguments, self.wake = tool, arguments, wake
        self.background = threading.get_ident() != MAIN
        self.id = 0
        self.is_done = False
        self.pieces: list[str] = []
        self.outcome: ToolError | None = None

    def done(self, outcome: ToolError | None = None) -> None:
        self.outcome, self.is_done = outcome, True
        self.wake()

    def result(self) -> Any:
        """What it came to. Raises `ToolError`."""
        if self.outcome is not None:
            raise self.outcome
        try:
            return json.loads("".join(self.pieces))
        except (ValueError, RecursionError) as error:
            raise ToolError(self.tool, f"its result can't be read here: {error}") from None


MAIN = threading.main_thread().ident


class Bridge:
    """One for the process. `offer`, `begin` and `end` are the main thread's."""

    is_placed = True
    """Whether requests stand in the output, at a mark; not where messages are kept by their marks:
    a request that was answered must not be told to the next host."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._offers: dict[str, Offer] = {}
        self._functions: dict[str, Any] = {}
        self._request: Any = None
        self._parent = b""
        self._numbers = itertools.count(1)
        # For what a signal's handler or a finalizer does in the middle of it, too.
        self._lock = threading.RLock()
        self._sent: dict[int, _Call] = {}
        self._waiting: deque[_Call] = deque()
        self.tools = Tools(self._function, lambda: self._offers)

    # What the kernel does

    def offer(self, tools: list[dict[str, Any]]) -> None:
        """From now on these are the session's tools."""
        self._offers = {
            str(one["name"]): Offer(
                str(one["name"]),
                str(one.get("description") or ""),
                dict(one.get("parameters") or {}),
                str(one.get("signature") or ""),
            )
            for one in tools
        }
        self._functions = {}

    def begin(self) -> None:
        """The cell that runs now may call tools."""
        if self._offers:
            self._request, self._parent = self._kernel.get_parent("shell"), b""

    def end(self) -> None:
        """Its calls are off; what threads still wait for fails now."""
        if self._request is not None:
            self._request = None
            self._fail_all("the cell that called it has ended")

    def lose_host(self) -> None:
        """Another host goes on with this kernel: it knows nothing of what the last one was asked.

        It offers its tools with its first cell.
        """
        self._offers, self._functions = {}, {}
        self._fail_all("the service that ran it is gone, and nobody knows whether it has been run")

    def _fail_all(self, why: str) -> None:
        with self._lock:
            calls = [*self._sent.values(), *self._waiting]
            self._sent.clear()
            self._waiting.clear()
        for call in calls:
            call.done(ToolError(call.tool, why, "ToolCallLost"))

    def read(self, frames: list[Any]) -> bool:
        """Whether these frames of the control channel were a reply; if so, it is dealt with."""
        parts = [frame.bytes for frame in frames]
        if len(parts) < 6 or REPLY not in parts[-4] or parts[-6] != DELIM:
            return False
        session = self._kernel.session
        if not hmac.compare_digest(parts[-5], session.sign(parts[-4:])):
            return False
        if json.loads(parts[-4]).get("msg_type") != "tool_reply":
            return False
        content = json.loads(parts[-1])
        call = self._sent.get(content.get("id"))
        if call is None:
            return True  # it was withdrawn
        error, piece = content.get("error"), content.get("piece")
        if piece is not None:
            call.pieces.append(piece)
            if content.get("more"):
                return True
        if self._forget(call):
            call.done(
                None
                if error is None
                else ToolError(
                    call.tool, str(error.get("message")), str(error.get("type") or "ToolError")
                )
            )
        return True

    # What the user's code does

    def _function(self, name: str) -> Any:
        made = self._functions.get(name)
        if made is None:
            made = function(self._offers[name], self._call, self._awaited)
            self._functions[name] = made
        return made

    def _packed(self, name: str, given: tuple[Any, ...], arguments: dict[str, Any]) -> bytes:
        offer = self._offers.get(name)
        if offer is None:
            raise ToolError(name, "this session offers it no more")
        packed = pack(offer, given, arguments)
        if (why := self._problem()) is not None:
            raise ToolError(name, why)
        return packed

    def _call(self, name: str, given: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        packed = self._packed(name, given, arguments)
        latch = threading.Lock()
        latch.acquire()
        call = _Call(name, packed, latch.release)
        patience = -1 if call.background else POLL_S
        try:
            self._start(call)
            while not call.is_done:
                latch.acquire(timeout=patience)
        except BaseException:
            self._kernel.interrupts.whole(lambda: self._withdraw(call))
            raise
        return call.result()

    def _awaited(self, name: str, given: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        return self._await(name, self._packed(name, given, arguments))

    async def _await(self, name: str, packed: bytes) -> Any:
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"tools.{name}.call() is for asyncio. Elsewhere call tools.{name}() in a thread, "
                "as with trio.to_thread.run_sync"
            ) from None
        future = loop.create_future()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                return  # the loop is closed, and with it whoever waited

        call = _Call(name, packed, wake)
        try:
            self._start(call)
            await future
        except BaseException:
            self._kernel.interrupts.whole(lambda: self._withdraw(call))
            raise
        return call.result()

    def _problem(self) -> str | None:
        """Why nobody would answer whoever calls this; None: somebody does."""
        if self._kernel.is_child():
            return "nobody can call it in a forked process: call it in the one that forked this"
        if self._request is None:
            if self._kernel.busy:
                return "tools can't be called while setup code runs, nor for other clients' cells"
            return "the cell that called it has ended"
        capture = self._kernel.capture
        if capture.cell() is not capture.front:
            return "the cell that called it has ended"
        return None

    # On the wire

    def _start(self, call: _Call) -> None:
        problems: list[str] = []

        def start() -> None:
            with self._lock:
                # asked again: a thread may have been here while its cell ended
                if (why := self._problem()) is not None:
                    problems.append(why)
                    return
                if len(self._sent) >= MOST_AT_ONCE:
                    self._waiting.append(call)
                    return
                call.id = next(self._numbers)
                self._sent[call.id] = call
            self._publish(call, self.is_placed)

        # Whole: a mark in the output whose message never comes would hold back what follows it.
        self._kernel.interrupts.whole(start)
        if problems:
            raise ToolError(call.tool, problems[0])

    def _publish(self, call: _Call, placed: bool) -> None:
        content = b'{"id":%d,"name":%s,"background":%s,"arguments":%s}' % (
            call.id,
            json.dumps(call.tool).encode(),
            b"true" if call.background else b"false",
            call.arguments,
        )
        self._say("tool_request", content, placed)

    def _say(self, kind: str, content: bytes, placed: bool) -> None:
        """Publish a message in its place. Not by the session: what it counts are displays."""
        request, parent = self._request, self._parent
        if request is None:
            return
        if not parent:
            self._parent = parent = pack_message(request["header"])
        session = self._kernel.session
        session.let_go()
        metadata = b'{"replsvc_mark":%d}' % session.mark() if placed else b"{}"
        parts = [pack_message(session.msg_header(kind)), parent, metadata, content]
        publisher = self._kernel.iopub_socket
        publisher.send_multipart([kind.encode(), DELIM, session.sign(parts), *parts])

    def _forget(self, call: _Call) -> bool:
        """Whether it was with the host; if so, one that waits for its place has it now."""
        with self._lock:
            if self._sent.pop(call.id, None) is None:
                return False
            if not self._waiting:
                return True
            following = self._waiting.popleft()
            following.id = next(self._numbers)
            self._sent[following.id] = following
        # Without a mark: the thread that reads replies must not wait for the pipes' reader.
        self._publish(following, False)
        return True

    def _withdraw(self, call: _Call) -> None:
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
        if self._forget(call):
            self._say("tool_withdrawn", b'{"id":%d}' % call.id, self.is_placed)
