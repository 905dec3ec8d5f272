"""Kernels opened with a deadline, and processes watched to their end."""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from replsvc_kernels.backends.base import Backend
from replsvc_kernels.kernel import Kernel, LaunchSpec


@asynccontextmanager
async def opened(backend: Backend, spec: LaunchSpec) -> AsyncIterator[Kernel]:
    """A kernel; a test that hangs with it fails, where it hangs."""
    with trio.fail_after(60):
        async with backend.open(spec) as kernel:
            yield kernel


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
