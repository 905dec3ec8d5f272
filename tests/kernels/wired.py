"""Kernels of our backends with Jupyter's own client beside ours, for suites that are not async."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, replace
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
from replsvc_kernels.backends.forkserver import ForkServerBackend
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.stock import StockBackend
from replsvc_kernels.backends.surroundings import PORTS
from replsvc_kernels.kernel import Kernel, LaunchSpec


@dataclass(frozen=True, slots=True)
class Place:
    """A backend, what it is to launch, and a directory where a kernel's sockets may be linked."""

    backend: Backend
    spec: LaunchSpec
    links: Path | None = None


@asynccontextmanager
async def _here(make: Callable[[str], Backend]) -> AsyncIterator[Place]:
    place = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
    try:
        for name in ("runtime", "work"):
            (place / name).mkdir()
        spec = LaunchSpec(str(place / "work"), python=kernel_python.path)
        yield Place(make(str(place / "runtime")), spec)
        assert list((place / "runtime").iterdir()) == []
    finally:
        shutil.rmtree(place)


@asynccontextmanager
async def _forked(*, stock: bool = False) -> AsyncIterator[Place]:
    async with fork_servers() as servers:
        links = servers.sessions.parent / "links"
        links.mkdir()
        backend = servers.backend(kernel_python.path, stock=stock)
        yield Place(backend, isolated(servers, "s"), links)


BACKENDS: Mapping[str, Callable[[], AbstractAsyncContextManager[Place]]] = {
    "process": lambda: _here(ProcessBackend),
    "forkserver": _forked,
    "stock": lambda: _here(StockBackend),
    "isolated stock": lambda: _forked(stock=True),
}


class Wired:
    """A kernel that lives until `close`, in a thread with a trio of its own.

    Our own client keeps its connections to it, as it has them in a session.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._connection: Connection | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        try:
            trio.run(self._live)
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._token, self._over = trio.lowlevel.current_trio_token(), trio.Event()
        async with BACKENDS[self._backend]() as place:
            with self._told(place.links):
                async with place.backend.open(place.spec) as kernel:
                    self.kernel: Kernel = kernel
                    self._ready.set()
                    await self._over.wait()

    @contextmanager
    def _told(self, links: Path | None) -> Iterator[None]:
        """Be told where the kernel listens, which a backend keeps to itself."""
        wired = self

        class Told(Channels):
            def __init__(self, connection: Connection, *args: Any) -> None:
                super().__init__(connection, *args)
                if links is not None:
                    connection = replace(connection, ip=f"{links}/k")
                wired._connection = connection

        remove = ForkServerBackend._connected

        def connected(backend: ForkServerBackend, run: Path) -> None:
            # An isolated kernel's sockets have no name once our client is connected.
            for channel in ("shell", "iopub", "stdin", "control"):
                os.link(run / f"k-{PORTS[channel]}", links / f"k-{PORTS[channel]}")
            remove(backend, run)

        module = foreign if self._backend.endswith("stock") else guest_kernel
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(module, "Channels", Told))
            if links is not None:
                stack.enter_context(mock.patch.object(ForkServerBackend, "_connected", connected))
            yield

    def client(self) -> BlockingKernelClient:
        """A client of Jupyter's; its channels are to be started."""
        connection = self._connection
        assert connection is not None
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
