"""Every private name that we lean on: which, why, and what happens where it is missing.

Tried with ipykernel 6.29, 7.1 and 7.4, IPython 8.18 to 9.18, Python 3.9 to 3.13. Where a name is
gone, that piece falls back to stock behaviour; nothing here may fail to import.

- `InteractiveShell._tee` (IPython 9): keeps every printed chunk in memory and slows print.
- `InteractiveShell._format_exception_for_storage` (IPython 9): formats each error a second time.
- `HistoryManager.outputs`, `.exceptions` (IPython 9): keep every result's mimebundle for ever.
- `IPython.core.interactiveshell._asyncio_runner`: tells whether `%autoawait` is asyncio's.
- `IPython.core.interactiveshell.PickleShareDB` (IPython 8): makes a directory when a shell is made.
- `ExecutionMagics._run_with_debugger`: `%debug STATEMENT` and `%run -d` print what they raise.
- `Kernel._execute_sleep`: half a millisecond a cell, for an IOPub thread that we do not have.
- `Kernel._allow_stdin`: what `raw_input` and `getpass` look at; stock sets it per cell.
- `Kernel._aborting`: whether what waits behind a failed request is refused.
- `Kernel._main_asyncio_lock` (7): belongs to the loop that serves, made anew with it.
- `Kernel._shell_parent`, `._shell_parent_ident` (7): a thread speaks for its own cell with them.
- `Kernel._parent_ident`: whom to ask.
- `asyncio._set_running_loop`, `asyncio.tasks._leave_task`, `._enter_task`: a synchronous cell runs
  with no loop running, so that `asyncio.run` and `trio.run` work in it.
- `BaseEventLoop._run_once`: `run_until_complete` of the kernel's loop inside a synchronous cell.
- `BaseEventLoop._selector`, `._ready`, `._scheduled`: a child must not share its parent's epoll.
- `Thread._bootstrap_inner`, and `Thread._context` (3.14): where a new thread gets its cell.
- `Popen._get_handles`: a process started by an older cell's thread writes to that cell.
- `_signal.signal`: the handler is set thrice a cell, and `signal.signal` makes enumerations of it.
- `ZMQStream._rebuild_io_state`: looks at the socket again after a send that went past the stream.
- `IPKernelApp._bind_socket`: a socket's address, for each transport.
- `ZMQShellDisplayHook._hooks` (7): what is registered to change a value's message.
- `Kernel._topic`: the prefix that subscribers of one kernel's messages know.
- `asyncio._get_running_loop`: asks without raising.
- `atexit._run_exitfuncs`: handlers run without waiting for user threads, as a kernel's end can't.

Our classes override some, and where these are gone the stock ones do their work unseen:
- `Kernel._publish_execute_input`: our host has the code already.
- `InteractiveShell._showtraceback`, which keeps `._last_traceback`: every error's way out.
- `InteractiveShell._exiter_default`: what `exit` and `quit` are.
- `ProfileDir._location_changed`: makes directories.
- `ZMQDisplayPublisher._flush_streams`: raises with whatever a cell has put for `sys.stdout`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import selectors
import signal
import subprocess
import sys
import threading
from contextvars import Context, ContextVar, copy_context
from typing import Any, Callable, Iterator

_MISSING: Any = object()
set_handler: Callable[..., Any] = getattr(sys.modules.get("_signal"), "signal", signal.signal)
SNDMORE = 2  # as a number: pyzmq's own loop makes enumerations of each frame's flags


class QuietShell:
    """Mixed in before the shell's class: what IPython would only remember is not remembered."""

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002
        yield

    def _format_exception_for_storage(self, exception: Any, *_args: Any, **_kw: Any) -> Any:  # noqa: ARG002
        return []


class MemoryStore(dict):  # type: ignore[type-arg]
    """Stands for the shell's database, which would be a directory."""

    def keys(self, pattern: str = "*") -> Any:
        """All keys, or those that match a glob."""
        import fnmatch

        return [key for key in list(super().keys()) if fnmatch.fnmatch(key, pattern)]


def without_database() -> None:
    """Before the shell is made: its database is in memory (IPython 8 makes it at once)."""
    from IPython.core import interactiveshell

    if hasattr(interactiveshell, "PickleShareDB"):
        interactiveshell.PickleShareDB = lambda *_args, **_kw: MemoryStore()


def without_debugger() -> Any:
    """Import ipykernel's debugger with debugpy out of sight: it costs more than the whole start."""
    known = sys.modules.get("debugpy", _MISSING)
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        import ipykernel.debugger
    finally:
        if known is _MISSING:
            del sys.modules["debugpy"]
        else:
            sys.modules["debugpy"] = known
    return ipykernel.debugger


def before_debugged_magics(refuse: Callable[[], Exception | None]) -> None:
    """Raise what `refuse()` gives, if anything, before a magic runs code in a debugger."""
    from IPython.core.magics.execution import ExecutionMagics

    stock = getattr(ExecutionMagics, "_run_with_debugger", None)
    if stock is None:
        return

    @functools.wraps(stock)
    def run_with_debugger(self: Any, *args: Any, **options: Any) -> Any:
        error = refuse()
        if error is not None:
            raise error
        return stock(self, *args, **options)

    ExecutionMagics._run_with_debugger = run_with_debugger  # type: ignore[method-assign]


def forget_outputs(shell: Any) -> None:
    """Let go of what the history manager kept of the last cell."""
    manager = getattr(shell, "history_manager", None)
    for name in ("outputs", "exceptions"):
        kept = getattr(manager, name, None)
        if kept is not None:
            kept.clear()


def is_asyncio_runner(shell: Any) -> bool:
    """Whether awaiting cells are for the kernel's own loop (`%autoawait` may name another)."""
    from IPython.core import interactiveshell

    runner = getattr(interactiveshell, "_asyncio_runner", _MISSING)
    return runner is _MISSING or shell.loop_runner is runner


def tune_kernel(kernel: Any) -> None:
    """No sleep before a reply."""
    kernel._execute_sleep = 0.0


def allow_stdin(kernel: Any, allowed: bool) -> None:
    """Whether the running cell's client answers `input_request`."""
    kernel._allow_stdin = allowed


def shell_ident(kernel: Any) -> Any:
    """Who sent the request that runs, as the wire names them."""
    return kernel._parent_ident["shell"]


def sends_at_once(stream: Any) -> Any:
    """What to call after a send on `stream.socket` itself; None: send through the stream.

    A send may swallow the edge that announces a request, which the stream then would never see.
    """
    return getattr(stream, "_rebuild_io_state", None) if hasattr(stream, "socket") else None


def send_now(stream: Any, frames: list[Any]) -> None:
    """Send on the stream's socket itself, see `sends_at_once`."""
    look_again = sends_at_once(stream)
    if look_again is None:
        stream.send_multipart(frames)
        return
    send = stream.socket.send
    for frame in frames[:-1]:
        send(frame, SNDMORE)
    send(frames[-1])
    look_again()


def is_aborting(kernel: Any) -> bool:
    """Whether requests that wait behind a failed one are to be refused."""
    return bool(getattr(kernel, "_aborting", False))


def adopt_loop(kernel: Any) -> None:
    """Make anew what a kernel made before there was a loop to serve on."""
    if hasattr(kernel, "_main_asyncio_lock"):
        kernel._main_asyncio_lock = asyncio.Lock()


def bind(app: Any, socket: Any, port: int) -> None:
    """Bind one of the application's sockets to its address."""
    app._bind_socket(socket, port)


def topic(kernel: Any, name: str) -> bytes:
    """What a message called `name` begins with, for subscribers."""
    return kernel._topic(name)  # type: ignore[no-any-return]


def a_loop_runs() -> bool:
    """Whether an event loop runs in this thread, as far as asyncio knows."""
    return asyncio._get_running_loop() is not None


def parent_variables(kernel: Any) -> list[ContextVar[Any]]:
    """The context variables by which ipykernel finds the request that something belongs to."""
    found = (getattr(kernel, name, None) for name in ("_shell_parent", "_shell_parent_ident"))
    return [variable for variable in found if isinstance(variable, ContextVar)]


@contextlib.contextmanager
def no_running_loop() -> Iterator[None]:
    """Inside, this thread looks as if no event loop ran in it."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)
        asyncio.set_event_loop(loop)


def enable_nested_run(loop: Any) -> None:
    """Let `loop.run_until_complete` work in synchronous cells, while the loop itself runs below."""
    stock = loop.run_until_complete
    if not hasattr(loop, "_run_once"):
        return

    @functools.wraps(stock)
    def run_until_complete(future: Any) -> Any:
        if not loop.is_running() or asyncio._get_running_loop() is not None:
            return stock(future)
        future = asyncio.ensure_future(future, loop=loop)
        asyncio._set_running_loop(loop)
        try:
            while not future.done():
                loop._run_once()
        except BaseException:
            future.cancel()
            raise
        finally:
            asyncio._set_running_loop(None)
        return future.result()

    loop.run_until_complete = run_until_complete


def detach_loop(loop: Any, running: bool) -> None:
    """In a forked child: only what this cell will schedule runs, and nothing of the parent's."""
    for name in ("_ready", "_scheduled"):
        # cancelled, not removed: the loop has counted those it is about to take
        for handle in list(getattr(loop, name, ())):
            handle.cancel()
    if hasattr(loop, "_selector"):
        loop._selector = selectors.DefaultSelector()
    if running:
        asyncio._set_running_loop(loop)


def on_thread_start(snapshot: Callable[[], Callable[[], None]]) -> None:
    """Call `snapshot()` where a thread is started, and what it returns as that thread begins."""
    thread = threading.Thread
    start, bootstrap = thread.start, getattr(thread, "_bootstrap_inner", None)
    if bootstrap is None:
        return

    @functools.wraps(start)
    def patched_start(self: Any) -> None:
        enter = snapshot()
        if getattr(self, "_context", _MISSING) is None:
            inherit = getattr(sys.flags, "thread_inherit_context", False)
            self._context = copy_context() if inherit else Context()
            self._context.run(enter)
        self._replsvc_enter = enter
        start(self)

    @functools.wraps(bootstrap)
    def patched_bootstrap(self: Any) -> None:
        enter = self.__dict__.pop("_replsvc_enter", None)
        if enter is not None:
            enter()
            del enter
        bootstrap(self)

    thread.start = patched_start  # type: ignore[method-assign]
    thread._bootstrap_inner = patched_bootstrap  # type: ignore[attr-defined]


def on_popen(before: Callable[[], None], inherited: Callable[[int], int]) -> None:
    """Call `before()` ahead of each process; `inherited(n)` stands for descriptor n, or is -1."""
    popen: Any = subprocess.Popen
    stock = getattr(popen, "_get_handles", None)
    if stock is None:
        return

    @functools.wraps(stock)
    def get_handles(self: Any, *args: Any) -> Any:
        before()
        handles = list(stock(self, *args))
        if len(handles) == 6:
            for place, number in ((3, 1), (5, 2)):
                if handles[place] == -1:
                    handles[place] = inherited(number)
        return tuple(handles)

    popen._get_handles = get_handles


def run_atexit() -> None:
    """Run the registered exit handlers."""
    atexit._run_exitfuncs()
