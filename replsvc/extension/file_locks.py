"""A queue for each file: tools that change the same one do it one after another."""

from __future__ import annotations

import os
from types import TracebackType

import trio
import trio.from_thread

# A run of trio has its own: what waits in one can't be woken from another.
_queues: trio.lowlevel.RunVar[dict[str, _Queue]] = trio.lowlevel.RunVar("replsvc file locks")


class _Queue:
    """Who has a file, and how many have or want it. A semaphore, since a lock has an owner: a
    thread's steps need not be one task's.
    """

    __slots__ = ("turn", "users")

    def __init__(self) -> None:
        self.turn = trio.Semaphore(1, max_value=1)
        self.users = 0


class file_lock:  # noqa: N801 - used like a function
    """Have a file to oneself, among the tools of this service.

        async with file_lock(path):
            path.write_text(changed(path.read_text()))

    Sync handlers, which run in worker threads, write `with`. Who asks first comes first. A file is
    known by its real path when the lock is made, whether or not it exists, so that links to it are
    the same file. Cancelled while it waits, it has nothing and gives up its place.

    Take one file's lock at a time, or always in the same order, and not twice: whoever waits for
    what they hold waits for ever. It holds nobody else back: not code in the kernel, and not other
    processes.
    """

    __slots__ = ("_held", "_key")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._key = os.path.realpath(path)
        self._held = False

    async def __aenter__(self) -> None:
        if self._held:
            raise RuntimeError("a file_lock is used once at a time; make one for each use")
        queue = _known().setdefault(self._key, _Queue())
        queue.users += 1
        try:
            await queue.turn.acquire()
        except BaseException:
            self._leave(queue)
            raise
        self._held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def __enter__(self) -> None:
        trio.from_thread.run(self.__aenter__)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.from_thread.run_sync(self._release)

    def _release(self) -> None:
        queue = _known()[self._key]
        self._held = False
        queue.turn.release()
        self._leave(queue)

    def _leave(self, queue: _Queue) -> None:
        queue.users -= 1
        if not queue.users:
            del _known()[self._key]


def _known() -> dict[str, _Queue]:
    try:
        return _queues.get()
    except LookupError:
        found: dict[str, _Queue] = {}
        _queues.set(found)
        return found
