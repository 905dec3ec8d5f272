"""What a backend offers: launching a kernel, and holding its process.

`Backend.open` is all the coordinator calls. Backends over the Jupyter wire build on `Process`, so
that `_wire.WireKernel` is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from replsvc_kernels.backends.accounts import Accounts
from replsvc_kernels.kernel import Kernel, LaunchSpec
from replsvc_kernels.messages import Exit

Isolation = Literal["none", "full", "partial", "external"]
"""How a kernel is kept apart: not, by every layer, by those that the machine gives, by others."""


class Backend(ABC):
    """A way to start kernels. Immutable, and shared by all sessions."""

    name: str

    @abstractmethod
    def open(self, spec: LaunchSpec) -> AbstractAsyncContextManager[Kernel]:
        """Start a kernel, wait until it is ready; leaving ends it and all that it started.

        Raises `LaunchError`, `LaunchTimeout` or `KernelDied`; then nothing is left behind.
        """


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a kernel's five Jupyter channels are (a connection file's content)."""

    transport: str
    ip: str
    ports: Mapping[str, int]
    key: bytes
    signature_scheme: str = "hmac-sha256"

    def url(self, channel: str) -> str:
        """The zmq address of `shell`, `iopub`, `stdin`, `control` or `hb`."""
        separator = "-" if self.transport == "ipc" else ":"
        return f"{self.transport}://{self.ip}{separator}{self.ports[channel]}"


class Process(ABC):
    """A launched kernel's process tree."""

    pid: int | None
    accounts = Accounts()
    """What is counted of it; a backend that counts puts its own here before anything runs."""

    @abstractmethod
    async def signal(self, number: int) -> bool:
        """Send a signal to the kernel's process group; whether it could be delivered."""

    @abstractmethod
    async def kill(self) -> None:
        """End the tree with SIGKILL and return when no process of it is left."""

    @property
    @abstractmethod
    def exit(self) -> Exit | None:
        """How the kernel's own process ended; None while it lives."""

    @abstractmethod
    async def wait_exited(self) -> Exit:
        """Wait until the kernel's own process has ended (its children may live on)."""
