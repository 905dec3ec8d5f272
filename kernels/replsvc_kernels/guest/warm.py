"""What a fork server does before it forks: a cell's whole way, so that no kernel's is its first.

The parser, the compiler, formatters, the error path, imports that libraries put off, the
interpreter's specialised code: each kernel inherits them warm, in pages that it need not copy.
"""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import linecache
import logging
import os
import sys
from typing import Any

import zmq
from tornado.ioloop import IOLoop

from . import compat
from .link import Pair

CELLS = ("1 + 1", "x = [n for n in range(3)]\nx", "print('x')", "1 / 0", "x +")
# Python specialises what runs more often than this.
ROUNDS = 12


class _Nowhere:
    """Stands for sockets, pipes and the host: takes everything, and has nothing but null pipes."""

    def __getattr__(self, _name: str) -> Any:
        return self

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False

    def take(self, number: int) -> Pair:
        """Pipes that swallow what is written."""
        return Pair(number, *(os.open(os.devnull, os.O_WRONLY) for _ in range(2)))


class _Complaints(logging.Handler):
    """Keeps what the kernel would have logged, and says it to nobody."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def warm(app: Any) -> list[str]:
    """Run cells from their messages to their replies, into nowhere; the kernel is as before.

    For a process of one thread before `plumb`. Returns what went wrong on the way, and left a
    kernel that is slower once: a test looks at it.
    """
    kernel, session, shell = app.kernel, app.session, app.kernel.shell
    nowhere, complaints = _Nowhere(), _Complaints()
    names, hidden = dict(shell.user_ns), dict(shell.user_ns_hidden)
    files = set(linecache.cache)
    session.key = b"warm"
    kernel.capture = kernel.link = kernel.iopub_socket = kernel.shell_stream = nowhere
    speakers = (shell.displayhook, shell.display_pub)
    for speaker in speakers:
        speaker.session, speaker.pub_socket = session, nowhere
    handlers, app.log.handlers[:] = list(app.log.handlers), [complaints]
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        IOLoop.current()
        compat.adopt_loop(kernel)
        with contextlib.redirect_stdout(io.StringIO()):
            loop.run_until_complete(_cells(kernel, session))
    except Exception as error:  # noqa: BLE001 - it is no reason to have no kernels
        complaints.lines.append(repr(error))
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        IOLoop.clear_current()
        app.log.handlers[:] = handlers
        session.key = b""
        session.digest_history.clear()
        kernel.capture = kernel.link = kernel.iopub_socket = kernel.shell_stream = None
        for speaker in speakers:
            speaker.session = speaker.pub_socket = None
        for name in set(linecache.cache) - files:
            del linecache.cache[name]
        _forget(shell, names, hidden)
    return complaints.lines


def _forget(shell: Any, names: dict[str, Any], hidden: dict[str, Any]) -> None:
    """Leave no name, no value and no error of these cells."""
    shell.user_ns.clear()
    shell.user_ns.update(names)
    shell.user_ns_hidden.clear()
    shell.user_ns_hidden.update(hidden)
    names["_oh"].clear()
    hook = shell.displayhook
    # while these differ from the names, it takes `_` for one that the user has bound
    hook._ = hook.__ = hook.___ = names["_"]
    hook.exec_result = None
    compat.forget_outputs(shell)
    shell.begin_cell()
    shell.last_execution_result = None
    shell.last_execution_succeeded = True
    shell.__dict__.pop("_last_traceback", None)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)


async def _cells(kernel: Any, session: Any) -> None:
    # as our host asks, see `brief`
    ours = {"replsvc": {"brief": True, "pair": 0}}
    for _ in range(ROUNDS):
        for code in CELLS:
            content = {
                "code": code,
                "silent": False,
                "store_history": False,
                "stop_on_error": False,
            }
            message = session.msg("execute_request", content, metadata=ours)
            frames = [zmq.Frame(part) for part in session.serialize(message)]
            handled = kernel.dispatch_shell(frames)
            if inspect.isawaitable(handled):
                await handled
