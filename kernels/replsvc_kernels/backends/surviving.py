"""Isolated kernels that outlive their coordinator: a holder has all that they hang on.

They have fork servers, and a part of the control groups, of their own: when a coordinator is
killed, everything of its other sessions ends at once, and everything here stays until the next
coordinator of the same data directory takes it over, or the holder's grace has passed.

Held are, by name: `cgroups`; `servers/ID` and `keepers/ID`; `kernels/NAME`, a session's kernel;
`pairs/NAME/NUMBER`, its pipes, and `pairs/NAME/NUMBER/CELL`, whose they are. Other names are for
whoever uses this.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels._channels import Channels
from replsvc_kernels._held import HeldKernel
from replsvc_kernels._spool import HeldPump
from replsvc_kernels.backends.accounts import Accounts
from replsvc_kernels.backends.base import Connection
from replsvc_kernels.backends.fork_server import Layers, ServerSpec
from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.forkserver import ForkServerBackend, own_workspace
from replsvc_kernels.backends.held import Holder, Item
from replsvc_kernels.backends.held_backend import SurvivingBackend
from replsvc_kernels.backends.held_server import (
    HeldKeeper,
    HeldServer,
    HeldServerEnds,
    adopt_process,
    close_all,
)
from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.backends.surroundings import PORTS
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import KernelInfo, LaunchSpec, LaunchTimeout
from replsvc_kernels.messages import Kept
from replsvc_kernels.sandbox import cgroups

NAMES = ("cgroups", "servers", "keepers", "kernels", "pairs")


@dataclass(eq=False, slots=True)
class KernelLeft:
    """A kernel that an earlier coordinator left, and what it wrote."""

    facts: Mapping[str, Any]
    ids: SessionIds
    guest: int
    place: int
    process: ForkedProcess
    pairs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    cells: dict[int, str] = field(default_factory=dict)


class SurvivingServers(ForkServers):
    """See the module. `directory` is the data directory; ids are shared with `others`.

    Nothing starts until `start` is called, or `find` finds what there is.
    """

    _staging = "lasting"

    def __init__(
        self,
        others: ForkServers,
        runtime: Path,
        sessions: Path,
        directory: Path,
        grace_s: float,
        start_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(runtime, sessions, start_timeout_s)
        self._ids, self._our_id = others.ids
        self._directory, self._grace_s = directory, grace_s
        self._holder: Holder | None = None
        self._left: dict[str, KernelLeft] = {}

    @property
    def holder(self) -> Holder:
        """What holds them; after `start`, or where `find` found one."""
        assert self._holder is not None
        return self._holder

    @property
    def held(self) -> bool:
        """Whether there is a holder."""
        return self._holder is not None and not self._holder.lost

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SurvivingServers]:
        """See `ForkServers.running`; without `leave`, all of it ends with the body."""
        try:
            async with super().running():
                yield self
        finally:
            if self._holder is not None:
                self._holder.drop("cgroups")
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self._holder.close)

    def leave(self) -> None:
        """From now on ending here ends nothing: it is all for the next coordinator."""
        if self._holder is not None:
            self._holder.leaving = True
            self.cgroups = None

    async def start(self) -> None:
        """Have a holder, so that a backend can be asked for. Raises `LaunchError`."""
        async with self._looking:
            if self._holder is None or self._holder.ended():
                self._holder = await trio.to_thread.run_sync(
                    Holder.start, self._directory, self._grace_s
                )

    async def find_cgroups(self) -> None:
        """See `ForkServers.find_cgroups`."""
        await super().find_cgroups()
        if self.cgroups is not None and self._holder is not None:
            facts, locks = self.cgroups.holdings()
            self._holder.put("cgroups", locks, facts=facts)

    async def _clean_up(self) -> None:
        """Others do it, and have spares: here there are none."""

    def _backend(self, spec: ServerSpec) -> ForkServerBackend:
        return SurvivingBackend(spec.python, HeldServer(spec, self.holder), self, spec.ids)

    # What an earlier coordinator left

    async def find(self) -> dict[str, Item]:
        """Take over what an earlier coordinator left; its kernels then wait for `adopt`.

        Returns what was held besides. `adopt` or `refuse` each of `left`.
        """
        holder = await trio.to_thread.run_sync(Holder.connect, self._directory)
        if holder is None:
            return {}
        items = await trio.to_thread.run_sync(holder.items)
        if holder.lost:
            await trio.to_thread.run_sync(holder.close)
            return {}
        self._holder = holder
        holder.grace(self._grace_s)
        for ids in self.ids:
            await ids.find()
        if (groups := items.pop("cgroups", None)) is not None:
            self.cgroups = cgroups.CgroupRoot.adopt(groups.facts, groups.fds)
            self._looked_for_cgroups = True
        keepers = {
            name: (HeldKeeper(holder, name, items[name].fds[0]), items[name].fds[1])
            for name in items
            if name.startswith("keepers/")
        }
        servers = {
            items[name].facts["keeper"]: self._server_left(name, items[name], keepers)
            for name in items
            if name.startswith("servers/")
        }
        for name, item in items.items():
            if name.startswith("kernels/"):
                self._kernel_left(name.removeprefix("kernels/"), item, servers, keepers)
        for name, item in items.items():
            if name.startswith("pairs/"):
                self._pair_left(name, item)
        for backend in self._backends.values():
            # Only now: how a kernel ended is told to those who are known.
            self._nursery.start_soon(backend.run)
        for name, (keeper, above) in keepers.items():
            if name not in servers:
                self._nursery.start_soon(keeper.watch, above, None)
        return {name: one for name, one in items.items() if name.split("/")[0] not in NAMES}

    def _server_left(
        self, name: str, item: Item, keepers: Mapping[str, tuple[HeldKeeper, int]]
    ) -> HeldServer:
        python, preload, env, ours = item.facts["key"]
        keeper, above = keepers[item.facts["keeper"]]
        control = socket.socket(fileno=item.fds[0])
        control.setblocking(False)
        layers = Layers(item.facts["landlock"], item.facts["own_ids"])
        spec = self._spec(python, tuple(preload), dict(env), self._our_id if ours else self._ids)
        ends = HeldServerEnds(name, control, layers, keeper, above)
        server = HeldServer(spec, self.holder, ends)
        backend = SurvivingBackend(python, server, self, spec.ids)
        self._backends[self._key(spec)] = backend
        return server

    def _kernel_left(
        self,
        name: str,
        item: Item,
        servers: Mapping[str, HeldServer],
        keepers: Mapping[str, tuple[HeldKeeper, int]],
    ) -> None:
        guest, pidfd, init, place = item.fds
        facts = item.facts
        ids = self._our_id if facts["ours"] else self._ids
        ids.reserve(facts["user"])
        keeper = keepers[facts["keeper"]][0]
        server = servers.get(keeper.name)
        process = (
            server.adopt(facts["number"], pidfd, init, keeper)
            if server is not None
            else adopt_process(self.holder, pidfd, init, keeper)
        )
        self._left[name] = KernelLeft(facts, ids, guest, place, process)

    def _pair_left(self, name: str, item: Item) -> None:
        _, kernel, number, *cell = name.split("/", 3)
        left = self._left.get(kernel)
        if left is None:
            item.close()
            self.holder.drop(name)
        elif cell:
            item.close()
            left.cells[int(number)] = cell[0]
        else:
            left.pairs[int(number)] = item.fds

    @property
    def left(self) -> frozenset[str]:
        """The kernels that were found and neither adopted nor refused."""
        return frozenset(self._left)

    def cells_of(self, name: str) -> tuple[str, ...]:
        """The cells of a kernel that was left whose output may not all be kept, oldest first."""
        left = self._left[name]
        return tuple(left.cells[number] for number in sorted(left.cells) if number in left.pairs)

    def pid_of(self, name: str) -> int | None:
        """The pid that a kernel that was left has or had."""
        pid: int | None = self._left[name].facts["pid"]
        return pid

    async def refuse(self, name: str) -> None:
        """End a kernel that was left; returns when nothing of it is there."""
        with ExitStack() as stack:
            left = self._taken(name, stack, self._group_left(self._left[name]))
            close_all([left.guest, *(fd for fds in left.pairs.values() for fd in fds)])
            async with background_nursery() as nursery:
                nursery.start_soon(left.process.run)
                await left.process.kill()

    @asynccontextmanager
    async def adopt(
        self, name: str, spec: LaunchSpec, kept: Mapping[str, Kept], running: str | None
    ) -> AsyncIterator[HeldKernel]:
        """Go on with a kernel that was left; leaving ends it, as it does one that was opened.

        `kept` says what is safe of each of its cells, `running` is the cell to `resume`; what is
        left of others comes as background. Raises `LaunchTimeout` for an idle kernel that does not
        answer in time, and what a kernel raises that breaks the protocol.
        """
        left = self._left[name]
        group = self._group_left(left)
        facts = left.facts
        with ExitStack() as stack:
            self._taken(name, stack, group)
            guest = socket.socket(fileno=left.guest)
            pump = HeldPump(guest, spec.limits.max_streams, spec.limits.output_bytes_per_s)
            stack.callback(pump.close)
            pump.start_holding(self.holder, name)
            outside = f"/proc/self/fd/{left.place}/k"
            connection = Connection("ipc", outside, PORTS, facts["key"].encode())
            process = left.process
            process.accounts = Accounts(group, spec.resources, own_workspace(spec))
            info = KernelInfo("python", facts["version"], True, facts["isolation"], process.pid)
            kernel = HeldKernel(
                info,
                process,
                stack.enter_context(Channels(connection, spec.limits)),
                spec.limits,
                pump=pump,
                nonce=facts["nonce"].encode(),
            )
            for number, fds in sorted(left.pairs.items()):
                cell = left.cells.get(number, "")
                known = kept.get(cell, Kept())
                pair = pump.adopt(number, cell, fds, known.streams)
                if number == 0:
                    kernel.orphan(pair)
                elif cell:
                    kernel.take_over(pair, known, running=cell == running)
                else:
                    pump.discard(pair)  # the guest passes it by
            async with background_nursery() as nursery:
                nursery.start_soon(process.run)
                try:
                    await nursery.start(kernel.run)
                    kernel.prefetch()
                    if running is None and process.exit is None:
                        with trio.move_on_after(spec.startup_timeout_s) as waiting:
                            await kernel.wait_welcome()
                        if waiting.cancelled_caught:
                            raise LaunchTimeout("the kernel that was left does not answer")
                    yield kernel
                finally:
                    with trio.CancelScope(shield=True):
                        if not self.holder.leaving:
                            await kernel.shutdown(spec.close_grace_s)
                        await process.kill()

    def _taken(self, name: str, stack: ExitStack, group: cgroups.Cgroup | None) -> KernelLeft:
        left = self._left.pop(name)
        stack.callback(left.ids.give_back, left.facts["user"])
        run = self.sessions / name / "run"
        stack.callback(self.unless_left, shutil.rmtree, run, ignore_errors=True)
        stack.callback(os.close, left.place)
        if group is not None:
            stack.callback(self.unless_left, group.remove)
        for held in (f"kernels/{name}", f"pairs/{name}"):
            stack.callback(self.holder.drop, held)
        return left

    def _group_left(self, left: KernelLeft) -> cgroups.Cgroup | None:
        if self.cgroups is None or not left.facts["group"]:
            return None
        limits = cgroups.Limits(**left.facts["limits"])
        return self.cgroups.reopen(left.facts["group"], limits)

    def unless_left(self, function: Callable[..., object], *args: Any, **named: Any) -> None:
        """Call it, unless what it ends is left for the next coordinator."""
        if not self.holder.leaving:
            function(*args, **named)
