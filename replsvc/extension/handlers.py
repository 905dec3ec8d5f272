"""Calling an author's function, whatever it does: sync ones in worker threads, errors as values."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

MAX_THREADS = 32
"""Sync handlers of one session that run at once; those that ignore their cancellation count."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a handler raised instead of returning."""

    error: BaseException

    @property
    def ename(self) -> str:
        """Its class's name."""
        return type(self.error).__name__

    @property
    def evalue(self) -> str:
        """Its message."""
        try:
            return str(self.error)
        except Exception:  # noqa: BLE001 - a stranger's __str__ may raise anything
            return ""

    @property
    def summary(self) -> str:
        """Name and message."""
        return f"{self.ename}: {self.evalue}" if self.evalue else self.ename

    def traceback(self) -> str:
        """For the log of whoever wrote the handler: it has the service's own paths in it."""
        return "".join(traceback.format_exception(self.error, limit=-20))


# What looks like Ctrl-C in here was raised by the handler itself: a real one is kept for later.
@trio.lowlevel.enable_ki_protection
async def call(
    function: Callable[..., Any], limiter: trio.CapacityLimiter, /, **arguments: Any
) -> Any:
    """What `function(**arguments)` returns, or `Raised`. An async one is awaited.

    Cancelling it cancels an async function; a thread is left to itself, and what it returns later
    is ignored.
    """
    try:
        if _is_async(function):
            return await function(**arguments)
        body = partial(_in_thread, function, arguments)
        result = await trio.to_thread.run_sync(body, abandon_on_cancel=True, limiter=limiter)
        # A sync function may hand out a coroutine, as a lambda around an async one does.
        return await result if inspect.iscoroutine(result) else result
    except trio.Cancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit of a handler must not end the service
        if isinstance(error, BaseExceptionGroup) and error.subgroup(trio.Cancelled) is not None:
            # A nursery of the handler's was cancelled together with what failed in it.
            await trio.lowlevel.checkpoint_if_cancelled()
        return Raised(error)


def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except BaseException as error:  # noqa: BLE001 - trio's thread takes StopIteration for its own
        return Raised(error)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - its own, not whether it has one
    )
