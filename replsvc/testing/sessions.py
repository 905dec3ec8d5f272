"""Sessions of a test run: opened on one coordinator, used from sync and async tests alike."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import trio
from pydantic import ValidationError

from replsvc.calls import Call, Event
from replsvc.config import Config
from replsvc.errors import ExtensionDisposeError, InvalidInputError
from replsvc.session import Session
from replsvc.session_values import SessionRequest, ToolInfo, first_problem
from replsvc.settings import load
from replsvc.testing.service import Service
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.kernel import Kernel, LaunchSpec
from replsvc_kernels.testing import FakeBackend, FakeKernel, Script

T = TypeVar("T")


class _FakeKernels(Backend):
    """Gives each session the fake kernels of its own script, by the session's id."""

    name = "fake"

    def __init__(self) -> None:
        self.of: dict[str, FakeBackend] = {}

    def open(self, spec: LaunchSpec) -> AbstractAsyncContextManager[Kernel]:
        return self.of[spec.name].open(spec)


class Sessions:
    """Opens sessions until it is closed; use as a context manager.

    One coordinator, on a thread of its own, serves all of them, so that only the first waits for
    what isolates kernels. `config` is, without one, that of `replsvc.toml` and `REPLSVC_*`
    variables, without its extensions and its data directory: on a machine that can't isolate,
    `REPLSVC_ISOLATION=none` runs the tests' kernels as plain processes.
    """

    def __init__(self, config: Config | None = None) -> None:
        if config is None:
            config = load().config.model_copy(update={"extensions": (), "data": None})
        self._config = config
        self._fake_kernels = _FakeKernels()
        self._real: Service | None = None
        self._fake: Service | None = None

    def __call__(
        self,
        *extensions: object,
        kernel: Script | None = None,
        setup: Script | None = None,
        **fields: Any,
    ) -> Opening:
        """A session with `extensions`, in the form that a session lists them, for one `with`.

        `kernel` is a script for a fake kernel (`replsvc_kernels.testing`), code to its steps; then
        no process runs, setup code does what `setup` says by the extension's name, and `{}` is
        enough for a test of tools and hooks. Without it the kernel is a real one. `fields` are
        those of `SessionRequest`.

        Entering raises as `Coordinator.open`, `ExtensionError` and `ExtensionSetupError` among it.
        """
        fields.setdefault("id", f"test_{secrets.token_hex(8)}")
        try:
            request = SessionRequest(**fields)
        except ValidationError as error:
            raise InvalidInputError(f"session: {first_problem(error)}") from error
        if kernel is None and setup is not None:
            raise InvalidInputError("setup is for a fake kernel.", hint="Give `kernel` a script.")
        fake = None if kernel is None else FakeBackend(kernel, setup=setup)
        return Opening(self, extensions, request, fake)

    def __enter__(self) -> Sessions:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every session that is still open, and what they ran on."""
        running = [service for service in (self._real, self._fake) if service is not None]
        self._real = self._fake = None
        with contextlib.ExitStack() as all_of_them:
            for service in running:
                all_of_them.callback(service.stop)

    def _service(self, session_id: str, fake: FakeBackend | None) -> Service:
        """What a session runs on, started if need be."""
        if fake is None:
            if self._real is None:
                self._real = _started(Service(self._config))
            return self._real
        self._fake_kernels.of[session_id] = fake
        if self._fake is None:
            self._fake = _started(Service(self._config, self._fake_kernels))
        return self._fake

    def _forget(self, session_id: str) -> None:
        self._fake_kernels.of.pop(session_id, None)


def _started(service: Service) -> Service:
    service.start()
    return service


class Opening:
    """A session that is opened by `with` or `async with`, and closed at its end.

    Leaving it raises `ExtensionDisposeError` where an extension could not dispose of its resource,
    after a body that did not raise.
    """

    def __init__(
        self,
        sessions: Sessions,
        extensions: tuple[object, ...],
        request: SessionRequest,
        fake: FakeBackend | None,
    ) -> None:
        self._sessions, self._extensions, self._request = sessions, extensions, request
        self._fake = fake
        self._id = request.id or ""
        self._service: Service

    async def _open(self) -> Session:
        return await self._service.coordinator.open(self._request, extensions=self._extensions)

    async def _close(self, clean: bool) -> None:
        coordinator = self._service.coordinator
        if not coordinator.knows(self._id):
            return  # it ended by itself
        try:
            await coordinator.close(self._id)
        except ExtensionDisposeError:
            if clean:
                raise

    def _begin(self) -> None:
        self._service = self._sessions._service(self._id, self._fake)

    def __enter__(self) -> ExtensionSession:
        self._begin()
        try:
            return ExtensionSession(self._service, self._service.wait(self._open), self._fake)
        except BaseException:
            self._sessions._forget(self._id)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._service.wait(partial(self._close, kind is None))
        self._sessions._forget(self._id)

    async def __aenter__(self) -> AsyncExtensionSession:
        self._begin()
        try:
            session = await self._service.across(self._open)
        except BaseException as error:
            # Cancelled at the last instant, it is open.
            await self.__aexit__(type(error), error, None)
            raise
        return AsyncExtensionSession(self._service, session, self._fake)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            await self._service.across(partial(self._close, kind is None))
        self._sessions._forget(self._id)


class _Held:
    """What a sync and an async session have in common."""

    def __init__(self, service: Service, session: Session, fake: FakeBackend | None) -> None:
        self._service, self._session, self._fake = service, session, fake
        self.id = session.id

    @property
    def kernel(self) -> FakeKernel:
        """The fake kernel that runs now: what it was asked to run, and how to end it."""
        if self._fake is None or not self._fake.kernels:
            raise LookupError("this session has no fake kernel: give it a script, `kernel={...}`")
        return self._fake.kernels[-1]


class ExtensionSession(_Held):
    """A session, for a test that is a plain function.

    Tools, hooks and setup run on the service's own thread, as they do in production: what a test
    shares with them must be safe between threads. Everything here waits for its end.
    """

    def run(self, code: str, **fields: Any) -> Call:
        """Run code with the tool `repl`; `fields` are those of `CallRequest`."""
        return self._wait(self._session.run, code, **fields)

    def call(self, tool: str, input: dict[str, Any] | None = None, **fields: Any) -> Call:  # noqa: A002
        """Use a tool as an agent does. Raises as `Session.call`; a failing tool is a result."""
        return self._wait(self._session.call, tool, input or {}, **fields)

    def describe(self) -> str:
        """The description of the tool `repl`, as a model reads it."""
        return self._wait(self._session.describe)

    def tools(self) -> tuple[ToolInfo, ...]:
        """The tools that an agent is given, `repl` first."""
        return self._wait(self._session.tools)

    def restart(self) -> None:
        """A new kernel, with its setup code."""
        self._wait(self._session.restart)

    def events(self) -> tuple[Event, ...]:
        """The first thousand events of the session's log, so far."""
        return self._wait(partial(self._session.log.read, self.id))

    def do(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """`await function(session, *args)` in the service's trio, with the `Session` itself."""
        return self._wait(function, self._session, *args)

    def _wait(self, function: Callable[..., Awaitable[T]], *args: Any, **fields: Any) -> T:
        return self._service.wait(partial(function, *args, **fields))


class AsyncExtensionSession(_Held):
    """A session, for an async test with pytest-trio; see `ExtensionSession`.

    It is served on another thread, by another run of trio than the test's: what a test shares with
    tools and hooks must be safe between threads, which a `trio.Event` is not. Cancelling a method
    cancels what it does there.
    """

    async def run(self, code: str, **fields: Any) -> Call:
        """See `ExtensionSession.run`."""
        return await self._across(self._session.run, code, **fields)

    async def call(self, tool: str, input: dict[str, Any] | None = None, **fields: Any) -> Call:  # noqa: A002
        """See `ExtensionSession.call`."""
        return await self._across(self._session.call, tool, input or {}, **fields)

    async def describe(self) -> str:
        """See `ExtensionSession.describe`."""
        return await self._across(self._session.describe)

    async def tools(self) -> tuple[ToolInfo, ...]:
        """See `ExtensionSession.tools`."""
        return await self._across(self._session.tools)

    async def restart(self) -> None:
        """See `ExtensionSession.restart`."""
        await self._across(self._session.restart)

    async def events(self) -> tuple[Event, ...]:
        """See `ExtensionSession.events`."""
        return await self._across(partial(self._session.log.read, self.id))

    async def do(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """See `ExtensionSession.do`."""
        return await self._across(function, self._session, *args)

    async def _across(self, function: Callable[..., Awaitable[T]], *args: Any, **fields: Any) -> T:
        return await self._service.across(partial(function, *args, **fields))
