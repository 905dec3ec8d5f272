"""What asks a person something: the host's answer, or an error at once, in the user's line.

ipykernel polls a hundred times a second, asks from several threads on one socket, and takes any
reply for its answer. Here one question is asked at a time, a reply that names another is dropped,
and a question that nobody waits for any more is taken back, so that the host's clock goes on.
"""

from __future__ import annotations

import pdb  # noqa: T100 - to guard it
import sys
import threading
import time
from typing import Any, Callable

import zmq
from IPython.core.error import StdinNotImplementedError

from . import compat

MAX_PROMPT_CHARS = 10_000
END_OF_INPUT = "\x04"
# A signal that comes just before the wait begins is seen when the wait is over.
POLL_MS = 100
# The host connects long before it asks; who has not, won't.
CONNECTED_S = 2.0


def refusal(what: str, why: str = "nobody can in this session") -> StdinNotImplementedError:
    """The error for `what`, which needs an answer."""
    return StdinNotImplementedError(f"{what} needs someone to answer it, and {why}")


class Asker:
    """Asks for the running cell, whichever of its threads wants to know.

    `begin` with the request of a cell that is answered, `end` when a cell ends; both are the main
    thread's. `socket` is the stdin channel's, and nobody else's from then on.
    """

    socket: Any = None

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._turn = threading.Lock()
        self._asking: int | None = None
        self._request: dict[str, Any] | None = None
        self._ident: Any = None

    def begin(self, request: dict[str, Any], ident: Any) -> None:
        """The cell that `request` started may ask whoever sent it."""
        self._request, self._ident = request, ident

    def end(self) -> None:
        """Nobody answers any more; what a thread still asks fails within a moment."""
        self._request = None

    def problem(self) -> str | None:
        """Why nobody would answer whoever calls this; None: somebody does."""
        if self._kernel.is_child():
            return "nobody can in a forked process: ask in the one that forked it"
        if self._request is None:
            return "nobody can in this session"
        capture = self._kernel.capture
        if capture.cell() is not capture.front:
            return "nobody can for a thread whose cell has ended"
        return None

    def ask(self, what: str, prompt: object, *, password: bool = False) -> str:
        """The answer. Raises `StdinNotImplementedError` at once where nobody gives one, and
        `EOFError` at the end of input.
        """
        if (why := self.problem()) is not None:
            raise refusal(what, why)
        if self._asking == threading.get_ident():
            # a signal handler, say: the question below it would never be answered
            raise refusal(what, "this thread is asking already")
        with self._turn:
            self._asking = threading.get_ident()
            try:
                if (why := self.problem()) is not None:  # while others had their turn
                    raise refusal(what, why)
                return self._ask(what, str(prompt)[:MAX_PROMPT_CHARS], password)
            finally:
                self._asking = None

    def _ask(self, what: str, prompt: str, password: bool) -> str:
        request, whole = self._request, self._kernel.interrupts.whole
        while self._receive() is not None:
            continue  # answers to what was asked before
        session = self._kernel.session
        content = {"prompt": prompt, "password": password}
        message = session.msg("input_request", content, request, metadata=self._place())
        asked = message["header"]["msg_id"]
        try:
            self._send(what, session.serialize(message, self._ident))
            reply = self._reply_to(asked, request)
        except BaseException:
            if self._request is request:
                whole(lambda: self._take_back(request))
            raise
        value = (reply.get("content") or {}).get("value")
        if value == END_OF_INPUT:
            own = (reply.get("metadata") or {}).get("replsvc") or {}
            raise EOFError(*([own["why"]] if "why" in own else []))
        return value if isinstance(value, str) else ""

    def _reply_to(self, asked: str, request: Any) -> dict[str, Any]:
        while self._request is request:
            if not self.socket.poll(POLL_MS):
                continue
            reply = self._receive()
            if reply is not None and _parent(reply) in (asked, None):
                return reply
        raise EOFError("the cell that asked has ended")

    def _send(self, what: str, parts: list[bytes]) -> None:
        until = time.monotonic() + CONNECTED_S
        failed: list[zmq.ZMQError] = []

        def attempt() -> None:
            failed.clear()
            try:
                self.socket.send_multipart(parts, zmq.NOBLOCK)
            except zmq.ZMQError as error:
                failed.append(error)

        while True:
            self._kernel.interrupts.whole(attempt)
            if not failed:
                return
            if time.monotonic() > until:
                raise refusal(what, "whoever runs this cell does not listen")
            time.sleep(0.01)

    def _receive(self) -> dict[str, Any] | None:
        """One reply, if one is there."""
        found: list[Any] = []

        def receive() -> None:
            try:
                found.append(self._kernel.session.recv(self.socket, zmq.NOBLOCK)[1])
            except ValueError:  # forged, or said twice
                found.append({"parent_header": {"msg_id": ""}})

        self._kernel.interrupts.whole(receive)
        return found[0] if found else None

    def _place(self) -> dict[str, int]:
        """Where in the output a message stands, as displays say it."""
        mark = self._kernel.session.mark
        return {} if mark is None else {"replsvc_mark": mark()}

    def _take_back(self, request: Any) -> None:
        """Tell our own host that the question is off; Jupyter's clients don't know that word."""
        if "replsvc" not in (request.get("metadata") or {}):
            return
        session = self._kernel.session
        message = session.msg("input_withdrawn", {}, request, metadata=self._place())
        try:
            self.socket.send_multipart(session.serialize(message, self._ident), zmq.NOBLOCK)
        except zmq.ZMQError:
            return


def _parent(reply: dict[str, Any]) -> str | None:
    """Which question a reply is to; None where it doesn't say, as with Jupyter's own clients."""
    return (reply.get("parent_header") or {}).get("msg_id")


def guard_debugger(answered: Callable[[], bool]) -> None:
    """Make every way into a debugger fail where `answered()` is false.

    To be called before IPython puts its own debugger in pdb's place: it derives from this one.
    """
    stock_interaction, stock_set_trace = pdb.Pdb.interaction, pdb.Pdb.set_trace
    compat.before_debugged_magics(lambda: None if answered() else refusal("A debugger"))

    def interaction(self: Any, *args: Any, **options: Any) -> Any:
        if not answered():
            sys.settrace(None)
            raise refusal("A debugger")
        self._replsvc_struck = False
        try:
            return stock_interaction(self, *args, **options)
        except KeyboardInterrupt:
            self._replsvc_struck = True
            raise

    def set_trace(self: Any, frame: Any = None, **options: Any) -> Any:
        if not answered():
            raise refusal("A breakpoint")
        return stock_set_trace(self, frame or sys._getframe(1), **options)

    pdb.Pdb.interaction = interaction  # type: ignore[method-assign]
    pdb.Pdb.set_trace = set_trace  # type: ignore[method-assign]


def interrupt_the_debugged() -> None:
    """Let an interrupt that leaves a debugger strike the code below it: IPython swallows it.

    To be called when IPython's debugger is in pdb's place.
    """
    owner: Any = next(cls for cls in pdb.Pdb.__mro__ if "interaction" in vars(cls))
    stock = owner.interaction

    def interaction(self: Any, *args: Any, **options: Any) -> Any:
        result = stock(self, *args, **options)
        if getattr(self, "_replsvc_struck", False):
            raise KeyboardInterrupt
        return result

    owner.interaction = interaction
