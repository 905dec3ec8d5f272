"""A fork server whose kernels may outlive us: its socket and its keeper are held elsewhere too."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from replsvc_kernels.backends.fork_server import ForkServer, Layers, ServerSpec
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.held import Holder
from replsvc_kernels.backends.keeper import Keeper


def key_of(spec: ServerSpec) -> list[Any]:
    """What makes an environment's server the same one after a restart, as plain JSON."""
    env = sorted(map(list, spec.env.items()))
    return [spec.python, list(spec.preload), env, spec.ids.only_ours]


class HeldKeeper(Keeper):
    """A keeper that lives until nobody needs it, or until its holder gives up."""

    def __init__(self, holder: Holder, name: str = "", hold: int = -1) -> None:
        """With `name` and `hold` it is one that was held; nothing that lives uses it yet."""
        if name:
            self._hold, self._users = hold, 0
        else:
            super().__init__()
        self.name = name or f"keepers/{secrets.token_hex(4)}"
        self._holder = holder
        self.leaves = lambda: holder.leaving

    def put(self, above: int) -> None:
        """Have it held, with the pidfd of its process."""
        self._holder.put(self.name, (self._hold, above))

    def give_back(self) -> None:
        """See `Keeper.give_back`."""
        super().give_back()
        if self._users == 0:
            self._holder.drop(self.name)


@dataclass(frozen=True, slots=True)
class HeldServerEnds:
    """A server that was held: its socket and its layers, its keeper and the keeper's process."""

    name: str
    control: socket.socket
    layers: Layers
    keeper: HeldKeeper
    above: int


class HeldServer(ForkServer):
    """See the module. With `left` the first server is one that was held."""

    def __init__(
        self, spec: ServerSpec, holder: Holder, left: HeldServerEnds | None = None
    ) -> None:
        super().__init__(spec)
        self._holder, self._left = holder, left
        # What was asked for in another life is not mistaken for ours.
        self._numbers = secrets.randbits(48)
        self.keepers: dict[ForkedProcess, HeldKeeper] = {}
        if left is not None:
            left.keeper.take()
            self._wanted.set()

    async def _one_server(self, keepers: trio.Nursery) -> None:
        left, self._left = self._left, None
        if left is None:
            await super()._one_server(keepers)
            return
        try:
            self._layers = left.layers
            keepers.start_soon(left.keeper.watch, left.above, None)
            self._control, self._keeper = left.control, left.keeper
            self._change()
            await self._hear(left.control)
        finally:
            left.control.close()
            left.keeper.give_back()
            self._holder.drop(left.name)

    async def _config(self, python: str) -> dict[str, Any]:
        return {**await super()._config(python), "apart": True}

    def _new_keeper(self) -> Keeper:
        return HeldKeeper(self._holder)

    async def _serve(self, control: socket.socket, keeper: Keeper, above: int) -> None:
        assert isinstance(keeper, HeldKeeper)
        name = f"servers/{secrets.token_hex(4)}"
        facts = {
            "key": key_of(self._spec),
            "keeper": keeper.name,
            "landlock": self._layers.landlock,
            "own_ids": self._layers.own_ids,
        }
        # The keeper first: a server without one could not be taken over.
        keeper.put(above)
        self._holder.put(name, (control.fileno(),), facts=facts)
        try:
            await super()._serve(control, keeper, above)
        finally:
            self._holder.drop(name)

    async def fork(self, fds: Sequence[int], *, unused: bool = False) -> ForkedProcess:
        """See `ForkServer.fork`."""
        process = await super().fork(fds, unused=unused)
        process.leaves = lambda: self._holder.leaving
        return process

    def facts_of(self, process: ForkedProcess) -> Mapping[str, Any]:
        """How `adopt` finds the server of a kernel that it forked."""
        number = next((n for n, one in self._processes.items() if one is process), None)
        keeper = self._keeper
        return {"number": number, "keeper": keeper.name if isinstance(keeper, HeldKeeper) else ""}

    def adopt(self, number: int, pidfd: int, init: int, keeper: HeldKeeper) -> ForkedProcess:
        """A kernel of the server that was held; whoever asks runs it."""
        return adopt_process(
            self._holder, pidfd, init, keeper, known=self._processes, number=number, server=self
        )

    def interrupt(self, number: int) -> bool:
        """Have the server send SIGINT, where that can't be done by descriptor."""
        return self._interrupt(number)


def adopt_process(
    holder: Holder,
    pidfd: int,
    init: int,
    keeper: HeldKeeper,
    *,
    known: dict[int, ForkedProcess] | None = None,
    number: int = 0,
    server: HeldServer | None = None,
) -> ForkedProcess:
    """A kernel that was held; without `server` that has ended, and only its keeper lives."""
    keeper.take()

    def forget() -> None:
        if known is not None:
            del known[number]
        keeper.give_back()

    process = ForkedProcess(
        pidfd,
        init,
        interrupt=lambda: server is not None and server.interrupt(number),
        forget=forget,
    )
    process.leaves = lambda: holder.leaving
    if known is not None:
        known[number] = process
    return process


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)
