"""ipykernel's own application in a session's isolation: where our guest was not tested.

Its fork server has imported nothing of ours: a child is isolated, and then executes it.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.accounts import Accounts
from replsvc_kernels.backends.base import Connection
from replsvc_kernels.backends.foreign import LastPrinted, foreign_kernel, too_late
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.forkserver import (
    ForkServerBackend,
    Place,
    by_a_server,
    own_workspace,
)
from replsvc_kernels.backends.stock import connection_file
from replsvc_kernels.backends.surroundings import PORTS
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Kernel, KernelInfo, LaunchError, LaunchSpec
from replsvc_kernels.sandbox import namespaces
from replsvc_kernels.sandbox.session_root import RUN, TMP


class IsolatedStockBackend(ForkServerBackend):
    """See the module. Its kernels have channels and no pipes, and can't be had ahead."""

    name = "forkserver-stock"
    pooled = False

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        deadline = trio.current_time() + spec.startup_timeout_s
        name = spec.name or Path(spec.workspace).parent.name
        async with self._placed(spec, name) as place, background_nursery() as nursery:
            outside, inside = self._addresses(place.directory)
            key = secrets.token_hex(32).encode()
            self._write_connection(place, Connection("ipc", inside, PORTS, key))
            request = self._request(spec, name, place.user, unused=False)
            request["program"] = [
                self._python, "-m", "ipykernel_launcher", "-f", f"{RUN}/connection.json",
            ]  # fmt: skip
            # In its own memory; else it is made in HOME, the session's workspace.
            request["env"] = {"IPYTHONDIR": f"{TMP}/ipython", **request["env"]}
            with closing(LastPrinted()) as printed:
                with trio.move_on_at(deadline) as startup:
                    process = await self._executed(request, printed, spec, place)
                if startup.cancelled_caught:
                    raise too_late(spec)
                process.accounts = Accounts(place.group, spec.resources, own_workspace(spec))
                nursery.start_soon(process.run)
                nursery.start_soon(printed.run)
                async with foreign_kernel(
                    KernelInfo("python", "", False, place.isolation, process.pid),
                    process,
                    Connection("ipc", outside, PORTS, key),
                    printed,
                    nursery,
                    spec,
                    deadline,
                ) as kernel:
                    self._connected(place.run)
                    yield kernel

    def _write_connection(self, place: Place, connection: Connection) -> None:
        path = connection_file(f"/proc/self/fd/{place.directory}", connection)
        if self._ids.how == namespaces.ROOT:
            self._give(path, place.user)

    async def _executed(
        self,
        request: Mapping[str, Any],
        printed: LastPrinted,
        spec: LaunchSpec,
        place: Place,
    ) -> ForkedProcess:
        """The program's process. Raises `LaunchError`."""

        async def fork() -> ForkedProcess:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            with ours:
                with theirs, ExitStack() as stack:
                    own = (theirs.fileno(), printed.write_end, printed.write_end)
                    fds = self._descriptors(stack, request, own, spec, place.group)
                    process = await self._server.fork(fds)
                if (refused := await _refusal(ours)) is None:
                    return process
                await self._abandon(process)
                raise LaunchError(refused)

        process = await by_a_server(fork)
        printed.close_write_end()
        return process

    @staticmethod
    async def _abandon(process: ForkedProcess) -> None:
        async with background_nursery() as nursery:
            nursery.start_soon(process.run)
            await process.kill()


async def _refusal(link: socket.socket) -> str | None:
    """Wait until the program runs, or why it does not."""
    await trio.lowlevel.wait_readable(link)
    try:
        said = json.loads(link.recv(64 * 1024))
        return str(said["error"])[:2_000]
    except (OSError, ValueError, KeyError, TypeError):
        return None
