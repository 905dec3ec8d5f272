"""What a process at its limits, or with closed descriptors, tries; run by inside.py."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

from attempts_credentials import attempt
from attempts_seccomp import without

from replsvc_kernels.sandbox import credentials, rlimits
from replsvc_kernels.sandbox.close_fds import close_fds

NAMES = (
    "CORE", "NOFILE", "NPROC", "FSIZE", "AS", "MEMLOCK", "SIGPENDING", "MSGQUEUE", "RTPRIO", "NICE",
)  # fmt: skip


def limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in NAMES}


def applied(**wanted: Any) -> Any:
    rlimits.apply(rlimits.Limits(**wanted))
    return limits()


def default_limits() -> list[Any]:
    before = limits()
    return [before, applied()]


def given_limits() -> Any:
    return applied(
        open_files=100, processes=50, file_size=4096, address_space=2**33, locked_memory=2**16,
        queued_signals=10, message_queues=0,
    )  # fmt: skip


def lower_ones_stay() -> tuple[int, int]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 50))
    rlimits.apply(rlimits.Limits(open_files=100))
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def crossed() -> dict[str, str]:
    rlimits.apply(rlimits.Limits(open_files=50, file_size=4096, locked_memory=2**16))
    if os.geteuid() == 0:
        credentials.drop(54321, 54321)
    held: list[int] = []

    def open_many() -> None:
        while len(held) < 200:
            held.append(os.open("/dev/null", os.O_RDONLY))

    outcomes = {"open files": attempt(open_many)}
    for fd in held:
        os.close(fd)
    with tempfile.TemporaryFile(dir="/tmp", buffering=0) as file:
        file.write(bytes(4096))
        outcomes["file size"] = attempt(lambda: file.write(b"x"))
    for name in ("NOFILE", "FSIZE", "CORE"):
        which = getattr(resource, f"RLIMIT_{name}")
        try:
            resource.setrlimit(which, (2**20, 2**20))
        except ValueError as error:  # how Python says EPERM
            outcomes[f"raise {name}"] = str(error)
    return outcomes


def processes(most: int) -> list[Any]:
    """Children of a uid of its own, up to where none more can be made; at most twice `most`."""
    rlimits.apply(rlimits.Limits(processes=most))
    credentials.drop(54399, 54399)
    r, w = os.pipe()
    pids: list[int] = []
    outcome = "done"
    while len(pids) < 2 * most:
        try:
            pid = os.fork()
        except OSError as error:
            outcome = errno.errorcode[error.errno or 0]
            break
        if pid == 0:
            os.close(w)
            os.read(r, 1)
            os._exit(0)
        pids.append(pid)
    os.close(w)
    for pid in pids:
        os.waitpid(pid, 0)
    return [len(pids), outcome]


def crash(limited: bool, directory: str) -> bool:
    """Whether the kernel made a core dump of a child that asked for one."""
    os.chdir(directory)
    if limited:
        rlimits.apply(rlimits.Limits())
    else:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
    if (pid := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGQUIT)
    return os.WCOREDUMP(os.waitpid(pid, 0)[1])


# Descriptors


def many() -> set[int]:
    """Files, sockets and pipes, low and high, some of them inheritable."""
    made = {*os.pipe(), os.open("/dev/null", os.O_RDWR), socket.socket().detach()}
    made.add(os.dup2(min(made), 300, inheritable=True))
    made.add(os.dup2(min(made), 900, inheritable=False))
    return made


def still_open() -> list[int]:
    found = []
    for fd in range(1024):
        try:
            os.fstat(fd)
        except OSError:
            continue
        found.append(fd)
    return found


def closed(keep: list[int], without_close_range: int) -> Any:
    """`keep` is by position among what was made; the streams are kept besides."""
    if without_close_range:
        without("close_range", answer=without_close_range)
    made = sorted(many())
    kept = [made[one] for one in keep]
    close_fds([0, 1, 2, *kept])
    return [sorted({0, 1, 2, *kept}), still_open()]


def everything_closed(path: str) -> None:
    many()
    close_fds(())
    left = still_open()
    Path(path).write_text(repr(left))
    os._exit(0)
