"""From a request to a session's parts: everything checked and resolved before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio
from pydantic import ValidationError

from replsvc import workspace
from replsvc.backends import Backends, Chosen, environment_of, interpreter, isolation_of
from replsvc.changes import Notices
from replsvc.config import ISOLATED_LIMITS, Config, Limits
from replsvc.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidInputError,
    SessionNotFoundError,
)
from replsvc.extension.available import Available, select
from replsvc.extension.describe import BaseFacts
from replsvc.extension.needs import Surroundings
from replsvc.extension.resolve import has_needs, resolve
from replsvc.kernel_slot import KernelPlan, setup_of
from replsvc.lasting import (
    Adopted,
    AdoptedOnce,
    Lasting,
    SessionLeft,
    end_calls,
    kept_of,
    last_start,
)
from replsvc.probe import EnvironmentFacts, probe
from replsvc.session_parts import SessionParts
from replsvc.session_values import Mount, SessionRequest, first_problem, lower_limits
from replsvc.store.artifacts import ArtifactFiles
from replsvc.store.log import EventLog
from replsvc_kernels import messages
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.forkserver import ForkServerBackend
from replsvc_kernels.kernel import HostMount, LaunchSpec, Resources
from replsvc_kernels.workspaces import Workspace, Workspaces

TENANT = "default"


class Opener:
    """What sessions of one coordinator are made from: its settings, extensions and backends."""

    def __init__(
        self,
        config: Config,
        available: Available,
        backends: Backends,
        workspaces: Workspaces,
        log: EventLog,
        notices: Notices,
        files: ArtifactFiles,
        private: Sequence[Path],
    ) -> None:
        """`private` are the service's own directories, of which no session is shown anything."""
        self._config, self._available, self._backends = config, available, backends
        self._workspaces, self._log, self._notices = workspaces, log, notices
        self._files, self._private = files, private
        self._facts: dict[str, EnvironmentFacts] = {}
        self._probing = trio.Lock()

    async def parts(
        self,
        session_id: str,
        request: SessionRequest,
        extensions: Sequence[object] | None,
        mounts: tuple[Mount, ...],
        mark: str,
        left: SessionLeft | None = None,
    ) -> SessionParts:
        """The parts of a new session; nothing has changed when this raises.

        Its workspace is made, and the caller's to close. Raises `ConflictError` for an id that was
        used, `InvalidInputError`, `ExtensionError`, `BackendUnavailableError`,
        `IsolationUnavailableError`, `StartupTimeoutError`, `StorageError`.
        """
        if request.survive_restart and extensions is not None:
            raise InvalidInputError(
                "survive_restart: extensions that are given as objects can't be found again.",
                hint="Name them in the settings, and leave `extensions` out.",
            )
        if request.id is not None and left is None:
            await self._check_unused(session_id)
        environment = environment_of(self._config, request)
        python = interpreter(environment)
        limits = self._limits(request)
        listed = self._listed(request, extensions)
        # An isolated session has its own loopback and nothing else.
        network = isolation_of(self._config, request) == "none"
        surroundings = None
        if has_needs(listed):
            surroundings = await self._surroundings(python, request, network=network)
        resolved = resolve(listed, surroundings)
        setup = setup_of(resolved)
        if request.kernel is not None and setup:
            raise BackendUnavailableError(
                f"kernel {request.kernel!r} is not ours: setup code of "
                f"{', '.join(code.name for code in setup)} can't run in it.",
                hint="Leave the extensions out, or use the default kernel.",
            )
        chosen = await self._backends.choose(
            request, writable_mounts=any(one.writable for one in mounts)
        )
        if chosen.isolation == "none":
            # Nothing holds a plain process to these: what is not in force is not said.
            limits = limits.model_copy(update=dict.fromkeys(ISOLATED_LIMITS))
        if request.kernel is not None:
            # Nor a kernel that is not ours.
            limits = limits.model_copy(update={"cpu_s": None, "output_bytes_per_s": None})
        for mount in mounts:
            workspace.check_apart(workspace.check_mount(mount), self._private)
        place = await self._place(session_id, limits, chosen, left)
        spec = LaunchSpec(
            workspace=str(place.path),
            name=session_id,
            mount_workspace=place.mount if place.hard else None,
            python=python,
            env={**environment.env, **request.env},
            startup_timeout_s=limits.startup_timeout_s,
            resources=_resources(limits),
            limits=_accepted(limits),
            mounts=tuple(
                HostMount(str(workspace.source_of(one)), one.target, one.writable) for one in mounts
            ),
        )
        plan = KernelPlan(
            chosen.backend,
            spec,
            setup,
            limits.setup_timeout_s,
            limits.interrupt_grace_s,
            None if left is None else await self._adopted(left, chosen.backend),
        )
        lasting = None
        if request.survive_restart:
            lasting = Lasting(self._backends.lasting, session_id, mark, mounts)

        async def facts() -> BaseFacts:
            return await self._describe(python, request, limits, chosen)

        return SessionParts(
            session_id, request, TENANT, limits, chosen, resolved, plan, place, mounts,
            self._log, self._notices, self._files, facts, lasting,
        )  # fmt: skip

    async def _place(
        self, session_id: str, limits: Limits, chosen: Chosen, left: SessionLeft | None
    ) -> Workspace:
        if left is not None:
            return self._workspaces.adopt(session_id, limits.workspace_bytes, left.image)
        try:
            return await self._workspaces.take(
                session_id, limits.workspace_bytes, isolated=chosen.isolation != "none"
            )
        except OSError as error:
            raise workspace.can_not_be_made(error) from error

    async def _adopted(self, left: SessionLeft, backend: Backend) -> Adopted:
        """The kernel that was left, and what is known of it. Ends calls that it has lost."""
        servers, log = self._backends.lasting, self._log
        cells = servers.cells_of(left.id)
        # One that had begun, and of which the kernel has nothing, was another kernel's.
        left.calls = [one for one in left.calls if not one.begun or one.id in cells]
        await end_calls(log, left.id, {one.id for one in left.calls})
        for call in list(left.calls):
            if await log.find(left.id, call.id, "call_finished") is not None:
                left.calls.remove(call)
        running = next((one.id for one in left.calls if one.begun), None)
        resumed = trio.Event()
        if running is None:
            resumed.set()
        kept = await kept_of(log, left.id, cells)
        once = AdoptedOnce(servers, backend, left.id, kept, running)
        return Adopted(once, *await last_start(log, left.id), resumed)

    async def expect(self) -> tuple[str, ...]:
        """Look at what sessions are isolated by, and have kernels ready for the usual one.

        Returns the layers that are missing. Raises as `Backends.choose`.
        """
        chosen = await self._backends.choose(SessionRequest())
        if isinstance(chosen.backend, ForkServerBackend):
            chosen.backend.expect(_usual(self._config.limits))
        return chosen.missing

    def _limits(self, request: SessionRequest) -> Limits:
        try:
            return lower_limits(self._config.limits, request.limits)
        except ValidationError as error:
            raise InvalidInputError(f"limits: {first_problem(error)}") from error
        except ValueError as error:
            raise InvalidInputError(f"limits: {error}") from error

    def _listed(self, request: SessionRequest, extensions: Sequence[object] | None) -> list[object]:
        """The extensions that a request names; those of the settings when it names none."""
        listed = list(extensions if extensions is not None else ())
        if request.extensions is not None:
            listed += select(self._available, request.extensions)
        elif extensions is None:
            listed += [loaded.item for loaded in self._available.values()]
        return listed

    async def _check_unused(self, session_id: str) -> None:
        try:
            await self._log.session(session_id)
        except SessionNotFoundError:
            return
        raise ConflictError(f"session {session_id} existed and was closed.", hint="Use another id.")

    async def _environment_facts(self, python: str, request: SessionRequest) -> EnvironmentFacts:
        """What its Python has; a kernelspec's kernel has nothing that we know of."""
        if request.kernel is not None:
            return EnvironmentFacts("", ())
        async with self._probing:
            if python not in self._facts:
                self._facts[python] = await probe(python)
            return self._facts[python]

    async def _surroundings(
        self, python: str, request: SessionRequest, *, network: bool
    ) -> Surroundings:
        facts = await self._environment_facts(python, request)
        if request.kernel is not None:
            return Surroundings(f"kernel {request.kernel!r}", "", network=network)
        return Surroundings(python, facts.version, dict(facts.packages), network)

    async def _describe(
        self, python: str, request: SessionRequest, limits: Limits, chosen: Chosen
    ) -> BaseFacts:
        facts = await self._environment_facts(python, request)
        return BaseFacts(
            language="Python" if request.kernel is None else request.kernel,
            version=facts.version,
            lifetime=request.lifetime,
            timeout_s=limits.timeout_s,
            max_output_bytes=limits.max_output_bytes,
            max_output_lines=limits.max_output_lines,
            memory_bytes=limits.memory_bytes,
            workspace_bytes=limits.workspace_bytes,
            cpu_s=limits.cpu_s,
            network=chosen.isolation == "none",
            isolation=chosen.isolation,
            packages=facts.packages,
        )


def _usual(limits: Limits) -> LaunchSpec:
    """What of a launch is known before there is a session."""
    return LaunchSpec("", resources=_resources(limits), limits=_accepted(limits))


def _accepted(limits: Limits) -> messages.Limits:
    return messages.Limits(output_bytes_per_s=limits.output_bytes_per_s)


def _resources(limits: Limits) -> Resources:
    return Resources(
        limits.memory_bytes, limits.processes, limits.open_files, limits.file_bytes,
        limits.cpu_s, limits.cpu_weight, limits.cpu_cores,
    )  # fmt: skip
