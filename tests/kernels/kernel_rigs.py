"""Kernels opened with a deadline, and processes watched to their end."""

from __future__ import annotations

import os
import select
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.pool import NO_POOL, PoolSize
from replsvc_kernels.kernel import Kernel, LaunchSpec


@asynccontextmanager
async def opened(backend: Backend, spec: LaunchSpec) -> AsyncIterator[Kernel]:
    """A kernel; a test that hangs with it fails, where it hangs."""
    with trio.fail_after(60):
        async with backend.open(spec) as kernel:
            yield kernel


@asynccontextmanager
async def fork_servers(pool: PoolSize = NO_POOL) -> AsyncIterator[ForkServers]:
    """Fork servers with a directory of their own, which they leave as they found it."""
    place = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    place.chmod(0o755)
    try:
        for name in ("runtime", "sessions"):
            (place / name).mkdir(mode=0o711)
        with trio.fail_after(120):
            made = ForkServers(place / "runtime", place / "sessions", pool=pool)
            async with made.running() as servers:
                yield servers
        assert list((place / "sessions").glob(".*")) == []
    finally:
        shutil.rmtree(place)


def isolated(servers: ForkServers, name: str, **fields: object) -> LaunchSpec:
    """What launches a kernel called `name` of these servers, in a workspace of its own."""
    workspace = servers.sessions / name / "work"
    workspace.parent.mkdir(mode=0o711)
    workspace.mkdir(mode=0o700)
    return LaunchSpec(str(workspace), **fields)


def seen_from_here(kernel: int, pid: int) -> int:
    """The pid here of the process that is `pid` in the pid namespace of the process `kernel`."""
    namespace = Path(f"/proc/{kernel}/ns/pid").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns/pid").readlink() != namespace:
                continue
            status = (path / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        numbers = next(line for line in status if line.startswith("NSpid:")).split()
        if int(numbers[-1]) == pid:
            return int(path.name)
    raise LookupError(f"there is no process {pid} in the namespace of {kernel}")


class Watched:
    """Processes held by pidfd, so that a pid that is given out anew is not mistaken for them."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def add(self, pid: int) -> None:
        self._handles[pid] = os.pidfd_open(pid)

    def alive(self) -> list[int]:
        return [pid for pid, fd in self._handles.items() if not select.select([fd], [], [], 0)[0]]

    def wait_gone(self, timeout_s: float = 30) -> None:
        for pid, fd in self._handles.items():
            assert select.select([fd], [], [], timeout_s)[0], f"process {pid} is still there"

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
