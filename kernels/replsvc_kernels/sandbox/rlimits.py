"""Limits that the kernel counts by process or by uid: the second line behind the cgroup's."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

# Not 0: where /proc/sys/kernel/core_pattern is a pipe, a limit of 0 still starts its program, as
# root and outside of every namespace, at each crash. 1 is the one value that doesn't, and as a file
# size it is too small for any dump.
NO_CORE = 1


@dataclass(frozen=True)
class Limits:
    """None leaves a limit as it is.

    `processes` counts the threads of all processes of a uid: give it only to a session whose uid is
    its own, since otherwise it counts the neighbours, and the operator's programs. The kernel holds
    whoever has CAP_SYS_RESOURCE or is root to no such count, and looks at it when a process is
    made, not when it takes on the uid. `address_space` (bytes, of one process) is a poor stand-in
    for a memory cgroup: it counts what is reserved, which is much more than what is used.
    `cpu_s` is processor time of one process, which gets SIGXCPU then and SIGKILL a second later.
    `file_size` is in bytes; Python ignores SIGXFSZ, so that writing more fails with EFBIG.
    """

    open_files: int | None = 1024
    processes: int | None = None
    file_size: int | None = 2**30
    address_space: int | None = None
    locked_memory: int | None = 8 * 2**20
    queued_signals: int | None = 4096
    message_queues: int | None = 819_200
    cpu_s: float | None = None


def apply(limits: Limits) -> None:
    """Set soft and hard limits, so that they can't be raised again, and refuse core dumps.

    A limit that is already lower stays. Raises `OSError` or `ValueError`.
    """
    wanted = {
        resource.RLIMIT_CORE: NO_CORE,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: limits.processes,
        resource.RLIMIT_FSIZE: limits.file_size,
        resource.RLIMIT_AS: limits.address_space,
        resource.RLIMIT_MEMLOCK: limits.locked_memory,
        resource.RLIMIT_SIGPENDING: limits.queued_signals,
        resource.RLIMIT_MSGQUEUE: limits.message_queues,
        # Real-time and raised priorities, which desktops give to their users, starve neighbours.
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
    }
    if limits.cpu_s is not None:
        soft = math.ceil(limits.cpu_s)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if hard == resource.RLIM_INFINITY or hard > soft:
            resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))
    for which, value in wanted.items():
        if value is not None:
            hard = resource.getrlimit(which)[1]
            lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (lower, lower))
