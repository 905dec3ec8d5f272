"""Kernels forked by a fork server, isolated by the operating system before any user code runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.base import Backend, Isolation
from replsvc_kernels.backends.fork_server import ForkServer, ServerEnded, ServerSpec
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.guest_kernel import GuestEnds, guest_kernel
from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.backends.surroundings import kernel_environment
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Kernel,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
    Resources,
)
from replsvc_kernels.messages import Exit
from replsvc_kernels.sandbox import cgroups, mounts, namespaces
from replsvc_kernels.sandbox.session_root import RUN, WORK

# Servers that may die while they fork the same kernel.
ATTEMPTS = 3
SHARED_MEMORY_BYTES = 256 * 1024 * 1024
TMP_BYTES = 512 * 1024 * 1024


class ForkServers:
    """All fork servers of a coordinator, and what their sessions share: ids, control groups."""

    def __init__(self, runtime: Path, sessions: Path, start_timeout_s: float = 60.0) -> None:
        """`runtime` is private and short-lived; `sessions` holds the sessions' directories."""
        self._runtime, self.sessions, self._start_timeout_s = runtime, sessions, start_timeout_s
        self._looked_for_cgroups = False
        self._looking = trio.Lock()
        self._ids = SessionIds()
        # An ordinary user's sessions with ids of their own could not write the user's files.
        self._our_id = SessionIds(only_ours="a writable mount is for your own user")
        self._servers: dict[tuple[object, ...], ForkServer] = {}
        self.numbers = count(1)
        self.cgroups: cgroups.CgroupRoot | None = None
        self.cgroups_missing: str | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ForkServers]:
        """Servers, and the groups of their sessions, live as long as the body."""
        try:
            async with background_nursery() as self._nursery:
                yield self
        finally:
            if self.cgroups is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self.cgroups.close)

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
    ) -> ForkServerBackend:
        """The backend of this environment; its server starts with the first kernel."""
        ids = self._our_id if writable_mounts and os.geteuid() != 0 else self._ids
        key = (python, preload, tuple(sorted((env or {}).items())), ids)
        server = self._servers.get(key)
        if server is None:
            staging = self._runtime / f"root{len(self._servers)}"
            staging.mkdir(mode=0o755)
            spec = ServerSpec(
                python,
                str(self.sessions),
                str(staging),
                ids,
                self._start_timeout_s,
                preload,
                env or {},
            )
            server = self._servers[key] = ForkServer(spec)
            self._nursery.start_soon(server.run)
        return ForkServerBackend(server, self, ids)

    def hurry(self) -> None:
        """A kernel is about to be forked: let what it would wait for begin."""
        if self.cgroups is not None:
            self._nursery.start_soon(trio.to_thread.run_sync, self.cgroups.hurry)


class ForkServerBackend(Backend):
    """See the module.

    `LaunchSpec.workspace` must be `SESSIONS/NAME/work` if there is no `mount_workspace`.
    """

    name = "forkserver"

    def __init__(self, server: ForkServer, servers: ForkServers, ids: SessionIds) -> None:
        self._server, self._servers, self._ids = server, servers, ids

    async def missing(self) -> tuple[str, ...]:
        """The layers that this machine does not give, each in a few words.

        Raises `LaunchError`, `LaunchTimeout` when the server can't start: there is no isolation.
        """
        await self._servers.find_cgroups()
        layers = await self._server.layers()
        reasons = []
        if not layers.own_ids:
            reasons.append(f"a user id for each session ({self._ids.missing})")
        if not layers.landlock:
            reasons.append("Landlock (Linux 5.13, and in the lsm= list)")
        if self._servers.cgroups is None:
            reasons.append(f"limits by control groups ({self._servers.cgroups_missing})")
        else:
            wanted = {"memory", "cpu", "pids"} - self._servers.cgroups.controllers
            reasons += [f"the control group {name}" for name in sorted(wanted)]
        return tuple(reasons)

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        deadline = trio.current_time() + spec.startup_timeout_s
        servers = self._servers
        servers.hurry()
        name = spec.name or Path(spec.workspace).parent.name
        run = servers.sessions / name / "run"
        with ExitStack() as stack:
            ids = await self._ids.find()
            user = ids.take()
            stack.callback(ids.give_back, user)
            stack.callback(shutil.rmtree, run, ignore_errors=True)
            # In a thread: a workspace that is used again may hold any number of files.
            await trio.to_thread.run_sync(self._make_directories, run, spec.workspace, user)
            # By descriptor: no path is too long for a unix socket that way.
            place = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, place)
            await servers.find_cgroups()
            group = self._group(name, spec.resources)
            if group is not None:
                stack.callback(group.remove)
            isolation: Isolation = "partial" if await self.missing() else "full"
            request = self._request(spec, name, user)
            async with background_nursery() as nursery:
                ends, process = await self._forked(request, place, spec, group, deadline)
                stack.callback(ends.pump.close)
                process.explain = lambda exit_: _explained(exit_, group)
                nursery.start_soon(process.run)
                async with guest_kernel(ends, process, nursery, spec, isolation, deadline) as k:
                    # We are connected, for good. A session can't fill a directory that is gone.
                    shutil.rmtree(run, ignore_errors=True)
                    yield k

    async def _forked(
        self,
        request: Mapping[str, Any],
        place: int,
        spec: LaunchSpec,
        group: cgroups.Cgroup | None,
        deadline: float,
    ) -> tuple[GuestEnds, ForkedProcess]:
        """A kernel's process, and what we hold of it; from the next server if this one dies."""
        with trio.move_on_at(deadline):
            for attempt in range(ATTEMPTS):
                # Each time new ones: a kernel may have them whose server died before it said so.
                ends = GuestEnds(f"/proc/self/fd/{place}/k", f"{RUN}/k", spec.limits.max_streams)
                with ExitStack() as undo, ends.theirs as theirs:
                    undo.callback(ends.pump.close)
                    joins = group.join_descriptors() if group is not None else []
                    for fd in joins:
                        theirs.callback(os.close, fd)
                    body = _file({**request, "joins": len(joins)})
                    theirs.callback(os.close, body)
                    fds = [body, ends.guest_end.fileno(), *ends.stdio, *joins]
                    if spec.mount_workspace is not None:
                        fds.append(_mount(spec.mount_workspace))
                        theirs.callback(os.close, fds[-1])
                    for mount in spec.mounts:
                        fds.append(_show(mount.source))
                        theirs.callback(os.close, fds[-1])
                    try:
                        process = await self._server.fork(fds)
                    except ServerEnded:
                        if attempt + 1 == ATTEMPTS:
                            raise
                    else:
                        undo.pop_all()
                        return ends, process
        raise LaunchTimeout(f"the kernel was not forked after {spec.startup_timeout_s:g} s")

    def _make_directories(self, run: Path, workspace: str, user: int) -> None:
        try:
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir(mode=0o700)
            if self._ids.how == namespaces.ROOT:
                outside = self._ids.maps.outside(user)
                os.chown(run, *outside)
                _give(workspace, *outside)
            elif self._ids.how == namespaces.SUBORDINATE:
                # Its files will be open to our group, which may be that of other users too.
                run.parent.chmod(0o700)
        except OSError as error:
            raise LaunchError(f"the session's directories can't be made: {error}") from error

    def _group(self, name: str, resources: Resources) -> cgroups.Cgroup | None:
        root = self._servers.cgroups
        if root is None:
            return None
        limits = cgroups.Limits(
            memory_bytes=resources.memory_bytes,
            processes=resources.processes,
            cpu_weight=100,
        )
        try:
            return root.create(f"{name[:60]}-{next(self._servers.numbers)}", limits)
        except OSError as error:
            raise LaunchError(f"the session's control group can't be made: {error}") from error

    def _counts_processes(self) -> bool:
        """Whether control groups do; else each session's user has a limit, if it has a user."""
        if self._ids.how == namespaces.SINGLE:
            return True  # one user for all: a limit of a session's would be its neighbours' too
        root = self._servers.cgroups
        return root is not None and "pids" in root.controllers

    def _request(self, spec: LaunchSpec, name: str, user: int) -> dict[str, Any]:
        # What lies in there is memory, and where no control group counts it this is its only limit.
        half = (spec.resources.memory_bytes or 2 * TMP_BYTES) // 2
        return {
            "user": user,
            "shared": self._ids.how == namespaces.SUBORDINATE,
            "work": None if spec.mount_workspace is not None else f"{name}/work",
            "run": f"{name}/run",
            "tmp_bytes": min(TMP_BYTES, half),
            "shared_memory_bytes": min(SHARED_MEMORY_BYTES, half),
            "shown": [{"target": m.target, "writable": m.writable} for m in spec.mounts],
            "rlimits": {
                "open_files": spec.resources.open_files,
                "file_size": spec.resources.file_bytes,
                "processes": None if self._counts_processes() else spec.resources.processes,
            },
            "env": {
                **kernel_environment(spec, spec.python),
                "HOME": WORK,
                "TMPDIR": WORK,
                **spec.env,
            },
        }


def _file(request: Mapping[str, Any]) -> int:
    """A request as a file in memory, for the one process that it is meant for."""
    descriptor = os.memfd_create("request", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(request).encode())
    return descriptor


def _mount(workspace: Callable[[], int]) -> int:
    try:
        return workspace()
    except OSError as error:
        raise LaunchError(f"the session's workspace can't be mounted: {error}") from error


def _show(source: str) -> int:
    """A detached copy of a mount of the host's, for one session. Raises `LaunchError`."""
    try:
        return mounts.tree(source, 0)
    except OSError as error:
        raise LaunchError(f"{source} can't be shown to a session: {error}") from error


def _explained(exit_: Exit, group: cgroups.Cgroup | None) -> Exit:
    """How a kernel ended, with the limit that ended it."""
    # Out of memory is SIGKILL, or an end that nobody told; an earlier one was a child's.
    if group is None or exit_.code is not None or exit_.signal not in (None, signal.SIGKILL):
        return exit_
    events = group.events()
    if not events.oom_kills:
        return exit_
    return Exit(
        signal=signal.SIGKILL,
        cause="oom",
        limit=events.memory_limit_bytes,
        peak=events.memory_peak_bytes,
    )


def _give(path: str, user: int, group: int) -> None:
    """The workspace and what was put there become the session's own."""
    os.chown(path, user, group)
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            os.chown(f"{directory}/{name}", user, group, follow_symlinks=False)
