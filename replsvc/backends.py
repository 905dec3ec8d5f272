"""Which backend runs a session's kernel, from its request and the operator's settings."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from replsvc.config import Config, Environment, Isolation
from replsvc.errors import (
    BackendUnavailableError,
    InvalidInputError,
    IsolationUnavailableError,
    StartupTimeoutError,
)
from replsvc.session_values import SessionRequest
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.forkserver import ForkServerBackend
from replsvc_kernels.backends.pool import PoolSize
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.surviving import SurvivingServers
from replsvc_kernels.kernel import (
    EnvironmentUnreadable,
    GuestUntested,
    LaunchError,
    LaunchTimeout,
)

UNPROTECTED = (
    "To run code as your own user, unprotected, ask for it by name: --isolation none "
    "(isolation = \"none\" in replsvc.toml, Config(isolation='none') in Python)."
)
_RANK: dict[Isolation, int] = {"none": 0, "best": 1, "required": 2}


def isolation_of(config: Config, request: SessionRequest) -> Isolation:
    """The isolation that is asked for; raises for less than the operator's."""
    asked = request.isolation or config.isolation
    if _RANK[asked] < _RANK[config.isolation]:
        raise InvalidInputError(
            f"isolation {asked!r} is less than the operator's {config.isolation!r}.",
            hint="Leave it out, or ask for more.",
        )
    return asked


def environment_of(config: Config, request: SessionRequest) -> Environment:
    """The environment that was asked for by name; raises for one that is not configured."""
    try:
        return config.environment(request.environment)
    except KeyError:
        known = ", ".join(sorted({"default", *config.environments}))
        raise BackendUnavailableError(
            f"there is no environment {request.environment!r}.",
            hint=f"Configured: {known}. Add it as [environments.NAME] with its python.",
        ) from None


def interpreter(environment: Environment) -> str:
    """The environment's Python; raises for one that is not there.

    A virtual environment's python is a link that must not be followed: its place is what makes it
    that environment's.
    """
    if environment.python is None:
        return sys.executable
    path = environment.python.expanduser().absolute()
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise BackendUnavailableError(
            f"there is no Python at {path}.",
            hint="Give an interpreter, or the directory of a virtual environment.",
        )
    return str(path)


def _check_can_survive(config: Config, request: SessionRequest, isolation: Isolation) -> None:
    """Raises where a kernel can't outlive the service."""
    if isolation == "none":
        raise BackendUnavailableError(
            "survive_restart: only an isolated session can survive a restart.",
            hint='Ask for isolation "best" or "required", or leave survive_restart out.',
        )
    if request.kernel is not None:
        raise BackendUnavailableError(
            f"survive_restart: kernel {request.kernel!r} is not ours, and can't survive a restart.",
            hint="Use the default kernel, or leave survive_restart out.",
        )
    if config.data is None:
        raise BackendUnavailableError(
            "survive_restart: without a data directory nobody could find the session again.",
            hint="Give it one: `data` in the settings.",
        )
    if request.lifetime == "call":
        raise InvalidInputError(
            'survive_restart: with lifetime "call" there is nothing that could survive.',
            hint="Leave one of them out.",
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """A session's backend, what its kernels are kept apart by, and which layers are missing."""

    backend: Backend
    isolation: Literal["none", "partial", "full"]
    missing: tuple[str, ...] = ()


class Backends:
    """The backends of one coordinator. `running` keeps the fork servers of those that isolate.

    `given` is the one for all sessions, in place of what the settings choose.
    """

    def __init__(
        self, config: Config, runtime: Path, sessions: Path, given: Backend | None = None
    ) -> None:
        self._config, self._runtime, self._given = config, runtime, given
        pool = PoolSize(min(config.pool_min, config.pool_max), config.pool_max)
        self._servers = ForkServers(
            runtime, sessions, config.limits.startup_timeout_s, pool, config.max_sessions
        )
        self.lasting = SurvivingServers(
            self._servers,
            runtime,
            sessions,
            config.data or runtime,
            config.survive_grace_s,
            config.limits.startup_timeout_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Fork servers live as long as the body."""
        async with self._servers.running(), self.lasting.running():
            yield

    async def choose(self, request: SessionRequest, *, writable_mounts: bool = False) -> Chosen:
        """The backend for this request. Nothing runs unsandboxed silently.

        With `writable_mounts` an ordinary user's session is that user, whose files it may write.

        Raises `IsolationUnavailableError` for isolation that can't be given, saying which layer is
        missing, `BackendUnavailableError` for an environment or kernelspec that can't be used.
        """
        if self._given is not None:
            return Chosen(self._given, "none")
        isolation = isolation_of(self._config, request)
        environment = environment_of(self._config, request)
        if request.survive_restart:
            _check_can_survive(self._config, request, isolation)
        if isolation == "none":
            return Chosen(self._plain(request), "none")
        if request.kernel is not None:
            raise IsolationUnavailableError(
                f"kernel {request.kernel!r} is not ours, and can't be isolated by this version.",
                hint=UNPROTECTED,
            )
        servers: ForkServers = self._servers
        if request.survive_restart:
            servers = self.lasting
            try:
                await self.lasting.start()
            except LaunchError as error:
                raise BackendUnavailableError(
                    f"survive_restart: {error}.", hint="Leave it out, or look at the disk."
                ) from error
        try:
            backend, missing = await self._isolating(servers, environment, writable_mounts)
        except LaunchTimeout as error:
            raise StartupTimeoutError(
                f"{error}.", hint="Look at what the environment does at start."
            ) from error
        except GuestUntested as error:
            raise BackendUnavailableError(
                f"survive_restart: {error}.", hint="Leave it out, or do that."
            ) from error
        except EnvironmentUnreadable as error:
            raise IsolationUnavailableError(
                f"isolation {isolation!r} can't be given here: {error}", hint=UNPROTECTED
            ) from error
        except LaunchError as error:
            raise IsolationUnavailableError(
                f"isolation {isolation!r} can't be given here: {error}.",
                hint=f"`replsvc doctor` says what is missing, and what to do. {UNPROTECTED}",
            ) from error
        if isolation == "required" and missing:
            raise IsolationUnavailableError(
                f"isolation 'required' can't be given here. Missing: {'; '.join(missing)}.",
                hint="`replsvc doctor` says what to do; isolation 'best' does without these.",
            )
        return Chosen(backend, "partial" if missing else "full", missing)

    async def _isolating(
        self, servers: ForkServers, environment: Environment, writable_mounts: bool
    ) -> tuple[ForkServerBackend, tuple[str, ...]]:
        """The backend that isolates, with what it lacks; ipykernel's own where ours was not tested.

        Raises `LaunchError`, `LaunchTimeout`.
        """
        python = interpreter(environment)

        def backend(*, stock: bool) -> ForkServerBackend:
            return servers.backend(
                python,
                environment.preload,
                environment.env,
                writable_mounts=writable_mounts,
                stock=stock,
            )

        ours = backend(stock=False)
        try:
            return ours, await ours.missing()
        except GuestUntested:
            if servers is self.lasting:
                raise
        theirs = backend(stock=True)
        return theirs, await theirs.missing()

    def _plain(self, request: SessionRequest) -> Backend:
        if request.kernel is None:
            return ProcessBackend(str(self._runtime))
        from replsvc_kernels.backends.provisioner import ProvisionerBackend  # noqa: PLC0415 - lazy

        return ProvisionerBackend(request.kernel, str(self._runtime))
