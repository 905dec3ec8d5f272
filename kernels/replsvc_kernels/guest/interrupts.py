"""SIGINT: a KeyboardInterrupt in user code, and nothing at all anywhere else.

Stock ipykernel lets KeyboardInterrupt strike in its own code, where it loses replies. Here a signal
between the request and the user's code waits for that code, one after it does nothing, and one in
the middle of a multipart message waits for its end (half a message would break the wire).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any, Callable

from . import compat

LIBRARIES = (os.path.dirname(os.path.abspath(__file__)),)


class Interrupts:
    """One for the process; all methods are the main thread's, except where they say otherwise."""

    def __init__(self) -> None:
        self._starting = self._pending = False
        self._task: Any = None
        self._loop: Any = None
        self.struck = False
        self._main = threading.main_thread().ident
        self._machinery: tuple[str, ...] = LIBRARIES
        self._other_loop: Any = None

    def install(self, machinery: tuple[str, ...], other_loop: Any) -> None:
        """From now on an idle kernel ignores SIGINT.

        `machinery` are directories of kernel code, `other_loop` is the control thread's.
        """
        self._machinery = LIBRARIES + machinery
        self._other_loop = other_loop
        stock = sys.unraisablehook

        def unraisable(what: Any) -> None:
            if what.exc_type is KeyboardInterrupt:
                self.again()
            else:
                stock(what)

        sys.unraisablehook = unraisable
        # a function, not SIG_IGN: children would inherit that
        compat.set_handler(signal.SIGINT, self._quiet)

    def begin(self) -> None:
        """A request has come whose user code is about to run."""
        self._pending = self.struck = False
        self._starting = True

    def end(self) -> None:
        """That request's user code has run."""
        self._starting = self._pending = False

    def run(self, function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """Call user code that SIGINT interrupts; whatever it raises is returned, never raised."""
        result = None
        error: BaseException | None = None
        self._starting = False
        try:
            try:
                # the stock handler, by identity: asyncio.run and trio look whether it is that
                compat.set_handler(signal.SIGINT, signal.default_int_handler)
                if self._pending:
                    raise KeyboardInterrupt
                result = function()
            finally:
                compat.set_handler(signal.SIGINT, self._quiet)
        except BaseException as caught:  # noqa: BLE001 - the caller makes a reply of it
            error = caught
        # once more, for the signal that came between the end of the code and the line above
        compat.set_handler(signal.SIGINT, self._quiet)
        return result, error

    async def wait(self, task: Any) -> tuple[Any, BaseException | None]:
        """Wait for an awaiting cell's task; SIGINT cancels it, or interrupts what it computes."""
        self._loop, self._task = asyncio.get_running_loop(), task
        self._starting = False
        compat.set_handler(signal.SIGINT, self._strike)
        if self._pending:
            self.struck = True
            task.cancel()
        try:
            await asyncio.wait([task])
        finally:
            compat.set_handler(signal.SIGINT, self._quiet)
            self._task = None
        if task.cancelled():
            return None, KeyboardInterrupt() if self.struck else asyncio.CancelledError()
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)

    def whole(self, function: Callable[[], None]) -> None:
        """Call `function` so that no KeyboardInterrupt strikes inside it, in whatever thread."""
        if threading.get_ident() != self._main:
            function()
            return
        late: list[Any] = []
        before = compat.set_handler(signal.SIGINT, lambda _number, frame: late.append(frame))
        try:
            function()
        finally:
            compat.set_handler(signal.SIGINT, before)
        if late and callable(before):
            before(signal.SIGINT, late[0])

    def again(self) -> None:
        """A finalizer swallowed the interrupt: let it strike once more, when that one has returned.

        From the other thread, as a signal that this one raises would strike before that.
        """
        self._other_loop.call_soon_threadsafe(os.kill, os.getpid(), signal.SIGINT)

    def _quiet(self, _number: int, _frame: Any) -> None:
        if self._starting:
            self._pending = True

    def _strike(self, _number: int, _frame: Any) -> None:
        # no local variables here: the traceback would keep the task, and with it the cell's pipes
        if self._task is not None and self._is_computing():
            raise KeyboardInterrupt

    def _is_computing(self) -> bool:
        """Cancel the cell, unless what runs now is user code, which would not see that."""
        self.struck = True
        running = asyncio.current_task(self._loop)
        # between a step and the loop's bookkeeping for it, an exception would lose the task
        inside = running is not None and getattr(running.get_coro(), "cr_running", False)
        if inside and running is self._task:
            return True
        # here and now: scheduled, it could come after a step that never ends
        self._task.cancel()
        # and whatever the loop waits in must notice
        self._loop.call_soon_threadsafe(bool)
        return inside and self._is_users(running)

    def _is_users(self, task: Any) -> bool:
        code = getattr(task.get_coro(), "cr_code", None)
        return code is not None and not code.co_filename.startswith(self._machinery)
