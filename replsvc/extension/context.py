"""`ToolContext`: what a handler is told of its call, and may use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import trio
from typing_extensions import TypeVar

from replsvc.errors import StaleContextError

R = TypeVar("R", default=Any)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class SessionView:
    """What an extension sees of the session it works in."""

    id: str
    name: str | None
    tenant: str


class SetupContext:
    """What an extension's `setup` may use."""

    def __init__(
        self,
        *,
        session: SessionView,
        options: Any,
        logger: Any,
        service: Callable[[type], Any],
    ) -> None:
        self.session, self.options, self.logger = session, options, logger
        self._service = service

    def get_service(self, kind: type[S]) -> S:
        """The service of that class, from a direct dependency. Raises `LookupError` without."""
        service: S = self._service(kind)
        return service


class ToolContext(Generic[R]):
    """One call of a tool, as its handler sees it; every use after the call's end raises.

    `R` is the type of `resource`. All of it may also be used from a sync handler's thread.
    """

    def __init__(
        self,
        *,
        call_id: str,
        session: SessionView,
        resource: R,
        options: Any,
        logger: Any,
        scope: trio.CancelScope,
        update: Callable[[object], None],
        service: Callable[[type], Any],
    ) -> None:
        self._call_id, self._session, self._resource = call_id, session, resource
        self._options, self._logger, self._scope = options, logger, scope
        self._update, self._service = update, service
        self._over = False

    def _live(self) -> None:
        if self._over:
            raise StaleContextError(
                f"call {self._call_id} has ended, and its context with it.",
                hint="Take what is needed from it before the handler returns.",
            )

    @property
    def call_id(self) -> str:
        """The call's id."""
        self._live()
        return self._call_id

    @property
    def session(self) -> SessionView:
        """The session that the call belongs to."""
        self._live()
        return self._session

    @property
    def resource(self) -> R:
        """What the extension's `setup` gave; None without one."""
        self._live()
        return self._resource

    @property
    def options(self) -> Any:
        """The extension's options, checked by its model; an empty mapping without one."""
        self._live()
        return self._options

    @property
    def logger(self) -> Any:
        """A structlog logger that knows session, call, extension and tool."""
        self._live()
        return self._logger

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The scope that the handler runs in: its deadline is the tool's."""
        self._live()
        return self._scope

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more; what a thread should look at."""
        return self._over or self._scope.cancel_called

    def get_service(self, kind: type[S]) -> S:
        """The service of that class, which the tool has named among its `services`.

        Raises `LookupError` for one that it has not.
        """
        self._live()
        service: S = self._service(kind)
        return service

    def update(self, partial: str | Mapping[str, Any] | list[Any]) -> None:
        """Tell whoever follows the call how far it is: text or JSON, as an `update` event.

        Ignored once the call has ended. Raises `ValueError` for what is no JSON, or too large.
        """
        if not self._over:
            self._update(partial)

    def end(self) -> None:
        """The call has ended. For the runtime only."""
        self._over = True
