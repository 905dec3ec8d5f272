"""All fork servers of a coordinator, one for each environment, and what their sessions share."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import trio

from replsvc_kernels.backends.fork_server import ForkServer, ServerSpec
from replsvc_kernels.backends.forkserver import SPARE, ForkServerBackend
from replsvc_kernels.backends.isolated_stock import IsolatedStockBackend
from replsvc_kernels.backends.pool import NO_POOL, PoolSize, memory_is_left
from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.background import background_nursery
from replsvc_kernels.sandbox import cgroups


class ForkServers:
    """All fork servers of a coordinator, and what their sessions share: ids, control groups."""

    _staging = "root"

    def __init__(
        self,
        runtime: Path,
        sessions: Path,
        start_timeout_s: float = 60.0,
        pool: PoolSize = NO_POOL,
        most_kernels: int = 1_000,
    ) -> None:
        """`runtime` is private and short-lived; `sessions` holds the sessions' directories.

        `pool` is how many unused kernels each environment has; with them there are never more than
        `most_kernels`.
        """
        self._runtime, self.sessions, self.start_timeout_s = runtime, sessions, start_timeout_s
        self.pool, self._most_kernels = pool, most_kernels
        self._looked_for_cgroups = False
        self._looking = trio.Lock()
        self._ids = SessionIds()
        # An ordinary user's sessions with ids of their own could not write the user's files.
        self._our_id = SessionIds(only_ours="a writable mount is for your own user")
        self._backends: dict[tuple[object, ...], ForkServerBackend] = {}
        self.kernels = 0
        self.numbers = count(1)
        self.cgroups: cgroups.CgroupRoot | None = None
        self.cgroups_missing: str | None = None

    @property
    def ids(self) -> tuple[SessionIds, SessionIds]:
        """Whose ids sessions get: a range's where there is one, or our own for all of them."""
        return self._ids, self._our_id

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ForkServers]:
        """Servers, and the groups of their sessions, live as long as the body."""
        try:
            await self._clean_up()
            async with background_nursery() as self._nursery:
                yield self
        finally:
            if self.cgroups is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self.cgroups.close)

    async def _clean_up(self) -> None:
        # What one that was killed has left; no other has the same directory.
        await trio.to_thread.run_sync(_remove_spares, self.sessions)

    async def find_cgroups(self) -> None:
        """Make our part of the control groups, if this machine lets us; once."""
        # Whoever comes second waits: else its session would be one without limits.
        async with self._looking:
            if self._looked_for_cgroups:
                return
            try:
                self.cgroups = await trio.to_thread.run_sync(cgroups.CgroupRoot.detect)
            except cgroups.CgroupsUnavailableError as error:
                self.cgroups_missing = str(error)
            self._looked_for_cgroups = True

    def backend(
        self,
        python: str,
        preload: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        *,
        writable_mounts: bool = False,
        stock: bool = False,
    ) -> ForkServerBackend:
        """The backend of this environment; its server starts with the first kernel.

        `stock` is ipykernel as it is, where our guest does not run: without `preload`.
        """
        ids = self._our_id if writable_mounts and os.geteuid() != 0 else self._ids
        spec = self._spec(python, () if stock else preload, env or {}, ids)
        spec = replace(spec, guest=not stock)
        key = self._key(spec)
        backend = self._backends.get(key)
        if backend is None:
            Path(spec.staging).mkdir(mode=0o755)
            backend = self._backends[key] = self._backend(spec)
            self._nursery.start_soon(backend.run)
        return backend

    def _spec(
        self, python: str, preload: tuple[str, ...], env: Mapping[str, str], ids: SessionIds
    ) -> ServerSpec:
        staging = self._runtime / f"{self._staging}{len(self._backends)}"
        return ServerSpec(
            python,
            str(self.sessions),
            str(staging),
            ids,
            self.start_timeout_s,
            preload,
            env,
        )

    @staticmethod
    def _key(spec: ServerSpec) -> tuple[object, ...]:
        return (spec.python, spec.preload, tuple(sorted(spec.env.items())), spec.ids, spec.guest)

    def _backend(self, spec: ServerSpec) -> ForkServerBackend:
        kind = ForkServerBackend if spec.guest else IsolatedStockBackend
        return kind(spec.python, ForkServer(spec), self, spec.ids)

    def forget_one(self) -> None:
        """One of `kernels` has ended."""
        self.kernels -= 1

    def has_room(self) -> bool:
        """Whether a kernel more may be made that nobody has asked for."""
        return self.kernels < self._most_kernels and memory_is_left()

    def hurry(self) -> None:
        """A kernel is about to be forked: let what it would wait for begin."""
        if self.cgroups is not None:
            self._nursery.start_soon(trio.to_thread.run_sync, self.cgroups.hurry)


def _remove_spares(sessions: Path) -> None:
    for directory in sessions.glob(f"{SPARE}*"):
        shutil.rmtree(directory, ignore_errors=True)
