"""The resources of a session's extensions: acquired in order, disposed in reverse, each once.

Each is held by a task of its own, so that a `setup` may be an async generator with nurseries and
cancel scopes around its `yield`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import structlog
import trio

from replsvc.errors import ExtensionDisposeError, ExtensionSetupError
from replsvc.extension import handlers
from replsvc.extension.context import SessionView, SetupContext
from replsvc.extension.resolve import ResolvedExtension
from replsvc.extension.services import providers
from replsvc.redaction import Redactor
from replsvc_kernels.background import background_nursery

log = structlog.get_logger("replsvc.extensions")


class _Held:
    """One extension's resource. `stop` is set to have it disposed, `done` when it has been."""

    def __init__(self, extension: ResolvedExtension) -> None:
        self.extension = extension
        self.is_ready = False
        self.stop, self.done = trio.Event(), trio.Event()


class Resources:
    """See the module. `limit_s` bounds each setup and each disposal."""

    def __init__(
        self,
        extensions: Sequence[ResolvedExtension],
        session: SessionView,
        threads: trio.CapacityLimiter,
        redactor: Redactor,
        limit_s: float,
    ) -> None:
        self._extensions = {extension.name: extension for extension in extensions}
        self._session, self._threads = session, threads
        self._redactor, self._limit_s = redactor, limit_s
        self._values: dict[str, Any] = {}
        self.failure: ExtensionDisposeError | None = None
        """The first disposal that failed."""

    def of(self, extension: ResolvedExtension) -> Any:
        """What its setup gave; None without one."""
        return self._values.get(extension.name)

    def service(self, extension: ResolvedExtension, kind: type) -> Any:
        """What provides `kind` to `extension`. Raises `LookupError` where nothing does."""
        found = providers(extension, kind, self._extensions)
        if len(found) != 1 or found[0] not in self._values:
            raise LookupError(
                f"extension {extension.name!r} has no service {kind.__qualname__}: "
                "it sees those of its direct `dependencies`"
            )
        return self._values[found[0]]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Have all of them inside. Raises `ExtensionSetupError`, after disposing what there was."""
        held: list[_Held] = []
        async with background_nursery() as nursery:
            try:
                for extension in self._extensions.values():
                    if extension.acquire is not None:
                        one = _Held(extension)
                        self._values[extension.name] = await nursery.start(self._hold, one)
                        held.append(one)
                yield
            finally:
                # However it ends: on a close, a failure, a cancellation.
                with trio.CancelScope(shield=True):
                    for one in reversed(held):
                        one.stop.set()
                        await one.done.wait()
                        del self._values[one.extension.name]

    async def _hold(self, one: _Held, *, task_status: trio.TaskStatus[Any]) -> None:
        name = one.extension.name
        try:
            with trio.CancelScope(deadline=trio.current_time() + self._limit_s) as scope:
                await self._hold_within(scope, one, task_status)
            if scope.cancelled_caught and not one.is_ready:
                raise self._setup_error(name, f"did not end within {self._limit_s:g} s")
            if scope.cancelled_caught:
                self._not_disposed(name, f"did not end within {self._limit_s:g} s", None)
        finally:
            one.done.set()

    async def _hold_within(
        self, scope: trio.CancelScope, one: _Held, task_status: trio.TaskStatus[Any]
    ) -> None:
        name = one.extension.name
        try:
            async with self._acquired(one.extension) as resource:
                self._check(one.extension, resource)
                # From here on it ends by `stop` alone, so that the order is kept.
                scope.deadline, scope.shield, one.is_ready = math.inf, True, True
                task_status.started(resource)
                await one.stop.wait()
                scope.deadline = trio.current_time() + self._limit_s
        except (trio.Cancelled, ExtensionSetupError):
            raise
        except BaseException as error:
            if one.is_ready and not one.stop.is_set():
                # What it runs beside has failed, and with it the session.
                raise RuntimeError(f"the resource of extension {name!r} failed") from error
            raised = handlers.Raised(error)
            if not one.is_ready:
                raise self._not_set_up(name, raised) from error
            self._not_disposed(name, f"raised {raised.summary}", error)

    @asynccontextmanager
    async def _acquired(self, extension: ResolvedExtension) -> AsyncIterator[Any]:
        setup: Callable[..., Any] | None = extension.acquire
        assert setup is not None
        if inspect.isasyncgenfunction(setup):
            setup = asynccontextmanager(setup)
        context = SetupContext(
            session=self._session,
            options=extension.options,
            logger=log.bind(session=self._session.id, extension=extension.name),
            service=partial(self.service, extension),
        )
        made = await handlers.call(partial(setup, context), self._threads)
        if isinstance(made, handlers.Raised):
            raise self._not_set_up(extension.name, made) from made.error
        if isinstance(made, AbstractAsyncContextManager):
            async with made as resource:
                try:
                    yield resource
                finally:
                    await self._dispose(extension, resource)
        else:
            try:
                yield made
            finally:
                await self._dispose(extension, made)

    async def _dispose(self, extension: ResolvedExtension, resource: Any) -> None:
        if extension.dispose is None:
            return
        done = await handlers.call(partial(extension.dispose, resource), self._threads)
        if isinstance(done, handlers.Raised):
            self._not_disposed(extension.name, f"raised {done.summary}", done.error)

    def _check(self, extension: ResolvedExtension, resource: Any) -> None:
        wrong = [kind for kind in extension.provides if not isinstance(resource, kind)]
        if wrong:
            kinds = " and ".join(kind.__qualname__ for kind in wrong)
            raise self._setup_error(
                extension.name,
                f"gave a {type(resource).__qualname__}, but the extension provides {kinds}",
            )

    def _not_set_up(self, name: str, raised: handlers.Raised) -> ExtensionSetupError:
        """A traceback has the service's own paths in it: it is for the operator."""
        log.warning(
            "setup failed",
            session=self._session.id,
            extension=name,
            traceback=self._redactor.text(raised.traceback()),
        )
        return self._setup_error(name, f"raised {raised.summary}")

    def _setup_error(self, name: str, what: str) -> ExtensionSetupError:
        return ExtensionSetupError(
            self._redactor.text(f"extension {name!r}: its setup {what}"), extension=name
        )

    def _not_disposed(self, name: str, what: str, error: BaseException | None) -> None:
        """The others are disposed all the same; whoever closes the session hears of the first."""
        said = self._redactor.text(f"extension {name!r}: disposing its resource {what}")
        traceback = "" if error is None else handlers.Raised(error).traceback()
        log.warning(
            "not disposed",
            session=self._session.id,
            extension=name,
            problem=said,
            traceback=self._redactor.text(traceback),
        )
        if self.failure is None:
            self.failure = ExtensionDisposeError(said)
            self.failure.__cause__ = error
