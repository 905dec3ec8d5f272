"""Threads, processes and forked children: who writes where, and what a child must not touch."""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any, Callable

from . import compat
from .capture import Capture, current
from .link import HostLink

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Forks:
    """Installs the hooks, once. `pid` is the kernel's: elsewhere we are in a child."""

    def __init__(self, capture: Capture, link: HostLink, kernel: Any) -> None:
        self.pid = os.getpid()
        self._capture, self._link, self._kernel = capture, link, kernel
        self._loop: Any = None
        self._awaiting: Callable[[], bool] = bool
        self._mask = threading.local()

    def install(self, loop: Any, awaiting: Callable[[], bool]) -> None:
        """Hook in; `awaiting()` says whether the kernel's loop is what runs the current cell."""
        self._loop, self._awaiting = loop, awaiting
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._in_parent,
            after_in_child=self._in_child,
        )
        compat.on_thread_start(self._snapshot)
        compat.on_popen(self._capture.flush, self._inherited)
        # the last two leave without Python's own flush: a line begun would be lost with them
        for name in ("system", "posix_spawn", "posix_spawnp", "_exit", "abort"):
            if hasattr(os, name):
                setattr(os, name, self._flushing(getattr(os, name)))

    def is_child(self) -> bool:
        """Whether this process was forked from the kernel's."""
        return os.getpid() != self.pid

    def leave(self, error: BaseException | None) -> None:
        """End a child whose cell has ended, with the status its code asked for."""
        code: Any = 1 if error is not None else 0
        if isinstance(error, SystemExit):
            code = error.code
        if not isinstance(code, int):
            code = 0 if code is None else 1
        try:
            self._capture.end()
        finally:
            os._exit(code & 0xFF)

    def _flushing(self, function: Any) -> Any:
        @functools.wraps(function)
        def flushed(*args: Any, **options: Any) -> Any:
            self._capture.flush()
            return function(*args, **options)

        return flushed

    def _snapshot(self) -> Callable[[], None]:
        """What a new thread takes over: ours, not the whole context, which Python would not."""
        taken: list[tuple[Any, Any]] = [(current, self._capture.cell())]
        for variable in compat.parent_variables(self._kernel):
            try:
                taken.append((variable, variable.get()))
            except LookupError:
                continue

        def enter() -> None:
            for variable, value in taken:
                variable.set(value)
            taken.clear()

        return enter

    def _inherited(self, number: int) -> int:
        cell = self._capture.cell()
        return -1 if cell is self._capture.front else cell.raw(number).own

    def _before_fork(self) -> None:
        # Python forgets what strikes a child before its handlers are in place; the system does not
        self._mask.saved = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        self._capture.flush()

    def _in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.saved)

    def _in_child(self) -> None:
        self._link.drop()
        self._kernel.streams.drop()
        self._capture.forked()
        for number, plain in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, signal.SIG_DFL),
        ):
            if getattr(signal.getsignal(number), "__module__", "").startswith(__package__ or "?"):
                signal.signal(number, plain)
        if self._loop is not None:
            compat.detach_loop(self._loop, self._awaiting())
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.saved)
