"""A coordinator on a thread of its own, for callers on other threads, with trio or without."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc_kernels.backends.base import Backend

T = TypeVar("T")


class Service:
    """See the module. It runs from `start` to `stop`."""

    coordinator: Coordinator

    def __init__(self, config: Config, backend: Backend | None = None) -> None:
        self._config, self._backend = config, backend
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        # A daemon, so that a test run which is ended in the middle does not wait for it.
        self._thread = threading.Thread(target=self._run, name="replsvc.testing", daemon=True)

    def start(self) -> None:
        """Returns when sessions can be opened. Raises as `Coordinator`."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End every session, and the thread. Raises what ended the coordinator before."""
        if self._failure is None:
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - for whoever waits, on another thread
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with Coordinator(self._config, backend=self._backend) as self.coordinator:
            self._ready.set()
            await self._stop.wait()

    def wait(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` over there and wait, from a thread where trio does not run."""
        if trio.lowlevel.in_trio_run():
            raise RuntimeError("in an async test write `async with` and `await`")
        return trio.from_thread.run(function, trio_token=self._token)

    async def across(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` over there and wait, from another run of trio.

        Cancelling this cancels `function`, and waits for its end.
        """
        here, done, scope = trio.lowlevel.current_trio_token(), trio.Event(), trio.CancelScope()
        results: list[T] = []
        errors: list[BaseException] = []

        async def over_there() -> None:
            try:
                with scope:
                    results.append(await function())
            except BaseException as error:
                errors.append(error)
                if isinstance(error, trio.Cancelled):  # the whole service is being ended
                    raise
            finally:
                here.run_sync_soon(done.set)

        self._token.run_sync_soon(trio.lowlevel.spawn_system_task, over_there)
        try:
            await done.wait()
        except trio.Cancelled:
            self._token.run_sync_soon(scope.cancel)
            with trio.CancelScope(shield=True):
                await done.wait()
            raise
        if not results:
            if errors and not isinstance(errors[0], trio.Cancelled):
                raise errors[0]
            raise trio.RunFinishedError("the sessions were closed meanwhile")
        return results[0]
