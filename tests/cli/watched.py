"""Kernels that can't be ended, because what watches over them is stopped."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Command


@contextmanager
def stopped_reaper(cell: socket.socket) -> Iterator[int]:
    """The process that watches over the kernel at the other end of `cell`, as a descriptor.

    It is stopped, so that it can't end its kernel and nobody gets done with waiting for that.
    """
    credentials = cell.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    status = Path(f"/proc/{struct.unpack('3i', credentials)[0]}/status").read_text()
    parent = next(line for line in status.splitlines() if line.startswith("PPid:"))
    handle = os.pidfd_open(int(parent.split()[1]))
    signal.pidfd_send_signal(handle, signal.SIGSTOP)
    try:
        yield handle
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        os.close(handle)


def no_process_left(replsvc: Command, reaper: int) -> bool:
    """Whether, once the reaper goes on and has ended the kernel's tree and itself, nothing runs."""
    signal.pidfd_send_signal(reaper, signal.SIGCONT)
    assert select.select([reaper], [], [], 60)[0]
    return not [left for left in replsvc.left_behind() if left.startswith("process")]
