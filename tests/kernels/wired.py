"""Kernels of our backends with Jupyter's own client beside ours, for suites that are not async."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import trio
from jupyter_client.blocking.client import BlockingKernelClient
from kernel_rigs import fork_servers, isolated

import kernel_python
from replsvc_kernels._channels import Channels
from replsvc_kernels.backends import foreign, guest_kernel
from replsvc_kernels.backends.base import Backend, Connection
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.stock import StockBackend
from replsvc_kernels.kernel import Kernel, LaunchSpec


@asynccontextmanager
async def _here(make: Callable[[str], Backend]) -> AsyncIterator[tuple[Backend, LaunchSpec]]:
    place = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
    try:
        for name in ("runtime", "work"):
            (place / name).mkdir()
        spec = LaunchSpec(str(place / "work"), python=kernel_python.path)
        yield make(str(place / "runtime")), spec
        assert list((place / "runtime").iterdir()) == []
    finally:
        shutil.rmtree(place)


@asynccontextmanager
async def _forked() -> AsyncIterator[tuple[Backend, LaunchSpec]]:
    async with fork_servers() as servers:
        yield servers.backend(kernel_python.path), isolated(servers, "s")


BACKENDS: Mapping[str, Callable[[], AbstractAsyncContextManager[tuple[Backend, LaunchSpec]]]] = {
    "process": lambda: _here(ProcessBackend),
    "forkserver": _forked,
    "stock": lambda: _here(StockBackend),
}


class Wired:
    """A kernel that lives until `close`, in a thread with a trio of its own.

    Our own client keeps its connections to it, as it has them in a session.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._connections: list[Connection] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        seen = self._connections

        class Told(Channels):
            """Tells where the kernel listens, which a backend keeps to itself."""

            def __init__(self, connection: Connection, *args: Any) -> None:
                seen.append(connection)
                super().__init__(connection, *args)

        try:
            with (
                mock.patch.object(guest_kernel, "Channels", Told),
                mock.patch.object(foreign, "Channels", Told),
            ):
                trio.run(self._live)
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._token, self._over = trio.lowlevel.current_trio_token(), trio.Event()
        async with BACKENDS[self._backend]() as (backend, spec), backend.open(spec) as kernel:
            self.kernel: Kernel = kernel
            self._ready.set()
            await self._over.wait()

    def client(self) -> BlockingKernelClient:
        """A client of Jupyter's; its channels are to be started."""
        connection = self._connections[-1]
        client = BlockingKernelClient()
        client.load_connection_info(
            {
                "transport": connection.transport,
                "ip": connection.ip,
                "key": connection.key,
                "signature_scheme": connection.signature_scheme,
                **{f"{name}_port": port for name, port in connection.ports.items()},
            }
        )
        return client

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run an async function where the kernel lives, and wait for its result."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def shutdown_kernel(self) -> None:
        """End the kernel, and wait until nothing of it is left."""
        self._token.run_sync_soon(self._over.set)
        self._thread.join()
