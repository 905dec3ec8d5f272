"""One asyncio thread for libraries of that world; nothing runs while nobody uses it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

T = TypeVar("T")


class AsyncioThread:
    """A running asyncio loop in a thread of its own. Made by `shared_asyncio_thread`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="replsvc-asyncio", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def stop(self) -> None:
        """End the loop and wait for its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()` in the loop; returns and raises what it does.

        Cancelling this cancels the asyncio task, and waits until that has ended.
        """
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        tasks: list[asyncio.Task[T]] = []

        async def awaited() -> T:
            return await function()

        def begin() -> None:
            task = self._loop.create_task(awaited())
            tasks.append(task)
            task.add_done_callback(lambda _: token.run_sync_soon(done.set))

        self._loop.call_soon_threadsafe(begin)
        try:
            await done.wait()
        except trio.Cancelled:
            # Queued behind `begin`, so the task is there.
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - not there yet
            with trio.CancelScope(shield=True):
                await done.wait()
            if not tasks[0].cancelled():
                tasks[0].exception()  # seen: asyncio need not complain of it
            raise
        try:
            return tasks[0].result()
        except asyncio.CancelledError:
            raise RuntimeError("an asyncio task was cancelled by something else") from None


_lock = threading.Lock()
_users = 0
_thread: AsyncioThread | None = None


@asynccontextmanager
async def shared_asyncio_thread() -> AsyncIterator[AsyncioThread]:
    """The process's one asyncio thread: started for its first user, ended with its last."""
    global _users, _thread
    with _lock:
        if _thread is None:
            _thread = AsyncioThread()
        thread = _thread
        _users += 1
    try:
        yield thread
    finally:
        last = None
        with _lock:
            _users -= 1
            if _users == 0:
                last, _thread = _thread, None
        if last is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(last.stop)
