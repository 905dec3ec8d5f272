"""What differs for a kernel that may outlive us, from its fork to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replsvc_kernels._held import HeldKernel
from replsvc_kernels._pipes import Pump
from replsvc_kernels._spool import HeldPump
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.forkserver import ForkServerBackend, Place
from replsvc_kernels.backends.guest_kernel import GuestEnds
from replsvc_kernels.backends.held import Holder
from replsvc_kernels.backends.held_server import HeldServer
from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.kernel import LaunchSpec
from replsvc_kernels.messages import Limits
from replsvc_kernels.sandbox import namespaces

if TYPE_CHECKING:
    from replsvc_kernels.backends.surviving import SurvivingServers


class _HeldEnds(GuestEnds):
    """The ends of a kernel whose pipes are held from the first on."""

    kernel_type = HeldKernel

    def __init__(self, outside: str, inside: str, limits: Limits, holder: Holder, name: str):
        self._holder, self._name = holder, name
        super().__init__(outside, inside, limits)

    def new_pump(self, limits: Limits) -> Pump:
        """See `GuestEnds.new_pump`."""
        pump = HeldPump(self.guest, limits.max_streams, limits.output_bytes_per_s)
        pump.start_holding(self._holder, self._name)
        return pump

    def more(self) -> dict[str, Any]:
        """See `GuestEnds.more`."""
        return {"keep": True}


class SurvivingBackend(ForkServerBackend):
    """A backend whose kernels are `LastingKernel`s."""

    _server: HeldServer
    _servers: SurvivingServers

    def __init__(
        self, python: str, server: HeldServer, servers: SurvivingServers, ids: SessionIds
    ) -> None:
        super().__init__(python, server, servers, ids)
        self._server, self._servers = server, servers

    def _new_ends(self, place: int, spec: LaunchSpec, *, unused: bool) -> GuestEnds:
        assert not unused  # there is no pool here
        name = spec.name or Path(spec.workspace).parent.name
        outside, inside = self._addresses(place)
        return _HeldEnds(outside, inside, spec.limits, self._servers.holder, name)

    @contextmanager
    def _holding(
        self,
        spec: LaunchSpec,
        name: str,
        place: Place,
        ends: GuestEnds,
        process: ForkedProcess,
    ) -> Iterator[None]:
        """From here on the kernel outlives us."""
        holder, group = self._servers.holder, place.group
        facts = {
            "key": ends.connection.key.decode(),
            "nonce": ends.nonce.decode(),
            "pid": process.pid,
            "user": place.user,
            "ours": self._ids is self._servers.ids[1],
            "group": Path(group.paths[0]).name.removeprefix("s-") if group is not None else "",
            "limits": {
                "memory_bytes": spec.resources.memory_bytes,
                "processes": spec.resources.processes,
            },
            "version": "",
            "isolation": "full",
            **self._server.facts_of(process),
        }
        fds = (ends.guest.fileno(), *process.handles, place.directory)
        holder.put(f"kernels/{name}", fds, facts=facts)
        try:
            yield
        finally:
            for held in (f"kernels/{name}", f"pairs/{name}"):
                holder.drop(held)

    def _connected(self, run: Path) -> None:
        # The next coordinator connects there. Nothing is to be put beside the sockets.
        if self._ids.how == namespaces.ROOT:
            os.chown(run, os.geteuid(), os.getegid())

    def _end(self, function: Callable[..., object], *args: Any, **named: Any) -> None:
        self._servers.unless_left(function, *args, **named)
