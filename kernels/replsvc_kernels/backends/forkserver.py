"""Kernels forked by a fork server, isolated by the operating system before any user code runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from replsvc_kernels.backends.accounts import Accounts
from replsvc_kernels.backends.base import Backend, Isolation
from replsvc_kernels.backends.fork_server import ForkServer, ServerEnded
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.guest_kernel import GuestEnds, guest_kernel
from replsvc_kernels.backends.pool import (
    NO_POOL,
    Made,
    Pool,
    Shape,
    can_be_sent,
    shape_of,
)
from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.backends.surroundings import kernel_environment
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Kernel,
    KernelError,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
    Resources,
)
from replsvc_kernels.sandbox import cgroups, mounts, namespaces
from replsvc_kernels.sandbox.session_root import RUN, WORK

if TYPE_CHECKING:
    from replsvc_kernels.backends.fork_servers import ForkServers

T = TypeVar("T")

# Servers that may die while they fork the same kernel.
ATTEMPTS = 3
# What the directories of unused kernels begin with; no session's name begins so.
SPARE = ".spare-"
SHARED_MEMORY_BYTES = 256 * 1024 * 1024
TMP_BYTES = 512 * 1024 * 1024


class Place(NamedTuple):
    """What a kernel is forked into.

    `run` is for its sockets, `directory` a descriptor of that; `user` is its id inside.
    """

    user: int
    run: Path
    directory: int
    group: cgroups.Cgroup | None
    isolation: Isolation


class ForkServerBackend(Backend):
    """See the module.

    `LaunchSpec.workspace` must be `SESSIONS/NAME/work` if there is no `mount_workspace`.
    """

    name = "forkserver"
    pooled = True
    """Whether kernels can be made before anybody asks for them."""

    def __init__(
        self, python: str, server: ForkServer, servers: ForkServers, ids: SessionIds
    ) -> None:
        self._python, self._server, self._servers, self._ids = python, server, servers, ids
        # Else the server's children do it, who see less of what the host mounts later.
        self._mounts = namespaces.may_mount()
        self._pool = Pool(self._spare, servers.pool if self.pooled else NO_POOL, servers.has_room)

    async def run(self) -> None:
        """Keep the server, and kernels that nobody has yet, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._server.run)
            nursery.start_soon(self._pool.run)

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
        name = spec.name or Path(spec.workspace).parent.name
        shape = shape_of(spec)
        with self._pool.opening(shape) as opened:
            while self._fits(spec) and (spare := self._pool.take(shape)) is not None:
                async with self._pool.handed_over(spare) as made:
                    if await self._adopt(made, spec, name):
                        opened()
                        yield made.kernel
                        return
            async with self._made(spec, name) as made:
                opened()
                yield made.kernel

    def expect(self, spec: LaunchSpec) -> None:
        """Have kernels ready for such a spec, as many as are to be there at least."""
        self._pool.expect(shape_of(spec))

    def _fits(self, spec: LaunchSpec) -> bool:
        """Whether a kernel that is there already can become this one."""
        return (
            not spec.mounts
            and self._server.binds
            and self._ids.how != namespaces.SUBORDINATE
            and can_be_sent(_environment(spec))
        )

    async def _adopt(self, made: Made, spec: LaunchSpec, name: str) -> bool:
        """Bind an unused kernel to a session: its workspace, its variables.

        False when it can't be done: the kernel or its server ended this moment, or a fork would
        fail likewise and says why.
        """
        try:
            with trio.fail_after(spec.startup_timeout_s), ExitStack() as stack:
                mount = await trio.to_thread.run_sync(self._workspace, spec, made.user)
                if mount is not None:
                    stack.callback(os.close, mount)
                await self._server.bind(made.process, f"{name}/work" if mount is None else mount)
                made.kernel.adopt(_environment(spec), WORK)
                made.process.accounts.workspace = own_workspace(spec)
        except trio.TooSlowError:
            raise LaunchTimeout(
                f"the kernel was not ready after {spec.startup_timeout_s:g} s"
            ) from None
        except KernelError:
            return False
        return True

    def _workspace(self, spec: LaunchSpec, user: int) -> int | None:
        """Make the workspace its user's; its mount's descriptor, unless it has a name."""
        if self._ids.how == namespaces.ROOT:
            self._give(spec.workspace, user)
        return None if spec.mount_workspace is None else _mount(spec.mount_workspace)

    @asynccontextmanager
    async def _spare(self, shape: Shape) -> AsyncIterator[Made]:
        """An unused kernel, in a directory that no session's name can be that of."""
        await self.missing()
        if not self._server.binds or self._ids.how == namespaces.SUBORDINATE:
            raise LaunchError("a kernel that is there can't be given a workspace here")
        spec = shape.spec(self._python, WORK, self._servers.start_timeout_s)
        directory = self._servers.sessions / f"{SPARE}{next(self._servers.numbers)}"
        try:
            directory.mkdir(mode=0o711)
        except OSError as error:
            raise LaunchError(f"no directory for a kernel can be made: {error}") from error
        try:
            async with self._made(spec, directory.name, unused=True) as made:
                directory.rmdir()
                yield made
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    @asynccontextmanager
    async def _made(
        self, spec: LaunchSpec, name: str, *, unused: bool = False
    ) -> AsyncIterator[Made]:
        deadline = trio.current_time() + spec.startup_timeout_s
        async with self._placed(spec, name, unused=unused) as place:
            request = self._request(spec, name, place.user, unused=unused)
            async with background_nursery() as nursery:
                ends, process = await self._forked(request, spec, place, deadline)
                gone = self._server.gone
                with ExitStack() as stack:
                    stack.callback(ends.pump.close)
                    stack.enter_context(self._holding(spec, name, place, ends, process))
                    process.accounts = Accounts(place.group, spec.resources, own_workspace(spec))
                    nursery.start_soon(process.run)
                    async with guest_kernel(
                        ends, process, nursery, spec, place.isolation, deadline, unused=unused
                    ) as kernel:
                        self._connected(place.run)
                        yield Made(kernel, process, place.user, gone)

    @asynccontextmanager
    async def _placed(
        self, spec: LaunchSpec, name: str, *, unused: bool = False
    ) -> AsyncIterator[Place]:
        """What a kernel is forked into; all of it is taken back at the end."""
        servers = self._servers
        run = servers.sessions / name / "run"
        await servers.find_cgroups()
        with ExitStack() as stack:
            ids = await self._ids.find()
            user = ids.take()
            stack.callback(ids.give_back, user)
            servers.kernels += 1
            stack.callback(servers.forget_one)
            stack.callback(self._end, shutil.rmtree, run, ignore_errors=True)
            # In a thread: a workspace that is used again may hold any number of files, and a
            # group is made when nobody moves into one.
            work = None if unused else spec.workspace
            group = await trio.to_thread.run_sync(
                self._make_place, run, work, user, name, spec.resources
            )
            if group is not None:
                stack.callback(self._end, group.remove)
            servers.hurry()
            # By descriptor: no path is too long for a unix socket that way.
            directory = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, directory)
            isolation: Isolation = "partial" if await self.missing() else "full"
            yield Place(user, run, directory, group, isolation)

    # What differs where a kernel may outlive us

    def _holding(
        self,
        _spec: LaunchSpec,
        _name: str,
        _place: Place,
        _ends: GuestEnds,
        _process: ForkedProcess,
    ) -> AbstractContextManager[None]:
        """Around a kernel that has been forked, until nothing of it is left."""
        return nullcontext()

    def _connected(self, run: Path) -> None:
        # For good. A session can't fill a directory that is gone.
        shutil.rmtree(run, ignore_errors=True)

    def _end(self, function: Callable[..., object], *args: Any, **named: Any) -> None:
        function(*args, **named)

    def _new_ends(self, place: int, spec: LaunchSpec, *, unused: bool) -> GuestEnds:
        return GuestEnds(*self._addresses(place), spec.limits, unused=unused)

    @staticmethod
    def _addresses(place: int) -> tuple[str, str]:
        """Where the kernel's sockets are: for us, and for the kernel."""
        return f"/proc/self/fd/{place}/k", f"{RUN}/k"

    async def _forked(
        self, request: Mapping[str, Any], spec: LaunchSpec, place: Place, deadline: float
    ) -> tuple[GuestEnds, ForkedProcess]:
        """A kernel's process, and what we hold of it."""
        unused = bool(request["unused"])

        async def fork() -> tuple[GuestEnds, ForkedProcess]:
            # Each time new ones: a kernel may have them whose server died before it said so.
            ends = self._new_ends(place.directory, spec, unused=unused)
            with ExitStack() as undo, ends.theirs as theirs:
                undo.callback(ends.pump.close)
                own = (ends.guest_end.fileno(), *ends.stdio)
                fds = self._descriptors(theirs, request, own, spec, place.group)
                process = await self._server.fork(fds, unused=unused)
                undo.pop_all()
            return ends, process

        with trio.move_on_at(deadline):
            return await by_a_server(fork)
        raise LaunchTimeout(f"the kernel was not forked after {spec.startup_timeout_s:g} s")

    def _descriptors(
        self,
        stack: ExitStack,
        request: Mapping[str, Any],
        own: tuple[int, int, int],
        spec: LaunchSpec,
        group: cgroups.Cgroup | None,
    ) -> list[int]:
        """What the child is given, as `forkserver.child` lists it; closed with `stack`.

        `own` are the link's end and what is to be its descriptors 1 and 2.
        """
        joins = group.join_descriptors() if group is not None else []
        for fd in joins:
            stack.callback(os.close, fd)
        body = _file({**request, "joins": len(joins)})
        stack.callback(os.close, body)
        fds = [body, *own, *joins]
        if spec.mount_workspace is not None:
            fds.append(_mount(spec.mount_workspace))
            stack.callback(os.close, fds[-1])
        for mount in spec.mounts if self._mounts else ():
            fds.append(_show(mount.source))
            stack.callback(os.close, fds[-1])
        return fds

    def _make_place(
        self, run: Path, work: str | None, user: int, name: str, resources: Resources
    ) -> cgroups.Cgroup | None:
        try:
            shutil.rmtree(run, ignore_errors=True)
            run.mkdir(mode=0o700)
            if self._ids.how == namespaces.ROOT:
                os.chown(run, *self._ids.maps.outside(user))
            elif self._ids.how == namespaces.SUBORDINATE:
                # Its files will be open to our group, which may be that of other users too.
                run.parent.chmod(0o700)
        except OSError as error:
            raise LaunchError(f"the session's directories can't be made: {error}") from error
        if work is not None and self._ids.how == namespaces.ROOT:
            self._give(work, user)
        return self._group(name, resources)

    def _give(self, work: str, user: int) -> None:
        try:
            _give(work, *self._ids.maps.outside(user))
        except OSError as error:
            raise LaunchError(f"the session can't be given its workspace: {error}") from error

    def _group(self, name: str, resources: Resources) -> cgroups.Cgroup | None:
        root = self._servers.cgroups
        if root is None:
            return None
        limits = cgroups.Limits(
            memory_bytes=resources.memory_bytes,
            processes=resources.processes,
            cpus=resources.cpu_cores,
            cpu_weight=resources.cpu_weight,
        )
        try:
            return root.create(f"{name.lstrip('.')[:60]}-{next(self._servers.numbers)}", limits)
        except OSError as error:
            raise LaunchError(f"the session's control group can't be made: {error}") from error

    def _counts_processes(self) -> bool:
        """Whether control groups do; else each session's user has a limit, if it has a user."""
        if self._ids.how == namespaces.SINGLE:
            return True  # one user for all: a limit of a session's would be its neighbours' too
        root = self._servers.cgroups
        return root is not None and "pids" in root.controllers

    def _counts_cpu(self) -> bool:
        """Whether control groups do; else the limit is each process's own."""
        root = self._servers.cgroups
        return root is not None and not {"cpu", "cpuacct"}.isdisjoint(root.controllers)

    def _request(self, spec: LaunchSpec, name: str, user: int, *, unused: bool) -> dict[str, Any]:
        # What lies in there is memory, and where no control group counts it this is its only limit.
        half = (spec.resources.memory_bytes or 2 * TMP_BYTES) // 2
        return {
            "user": user,
            "shared": self._ids.how == namespaces.SUBORDINATE,
            "unused": unused,
            "work": None if unused or spec.mount_workspace is not None else f"{name}/work",
            "run": f"{name}/run",
            "tmp_bytes": min(TMP_BYTES, half),
            "shared_memory_bytes": min(SHARED_MEMORY_BYTES, half),
            "shown": [
                {"target": m.target, "writable": m.writable, "source": m.source}
                for m in spec.mounts
            ],
            "rlimits": {
                "open_files": spec.resources.open_files,
                "file_size": spec.resources.file_bytes,
                "cpu_s": None if self._counts_cpu() else spec.resources.cpu_s,
                "processes": None if self._counts_processes() else spec.resources.processes,
            },
            "env": _environment(spec),
        }


async def by_a_server(fork: Callable[[], Awaitable[T]]) -> T:
    """What `fork` gives; by the next server if this one dies."""
    for _ in range(ATTEMPTS - 1):
        with suppress(ServerEnded):
            return await fork()
    return await fork()


def _environment(spec: LaunchSpec) -> dict[str, str]:
    """All variables of an isolated kernel."""
    base = kernel_environment(spec, spec.python)
    return {**base, "HOME": WORK, "TMPDIR": WORK, **spec.env}


def _file(request: Mapping[str, Any]) -> int:
    """A request as a file in memory, for the one process that it is meant for."""
    descriptor = os.memfd_create("request", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps(request).encode())
    return descriptor


def own_workspace(spec: LaunchSpec) -> str | None:
    """The workspace's path, if it is a file system of its own."""
    return spec.workspace if spec.mount_workspace is not None else None


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


def _give(path: str, user: int, group: int) -> None:
    """The workspace and what was put there become the session's own."""
    os.chown(path, user, group)
    for directory, names, files in os.walk(path):
        for name in (*names, *files):
            os.chown(f"{directory}/{name}", user, group, follow_symlinks=False)
