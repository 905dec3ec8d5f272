"""More of what a session's code tries, beside attempts.py in its workspace: what it can exhaust,
what it could plant, what it shares with a neighbour.

Importing `attempts` proves the sandbox first, or raises `NotTried`.
"""
# ruff: noqa: PTH101, PTH103, PTH104, PTH106, PTH115, PTH116, PTH120, PTH123, PTH208
# What is tried is the system calls.

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from attempts import KEPT, outcome, prove

libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {"mq_open": 240, "ioprio_set": 251, "timer_create": 222},
    "aarch64": {"mq_open": 180, "ioprio_set": 30, "timer_create": 107},
}[os.uname().machine]


def checked(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), "")
    return result


# Against others


def kill_everybody() -> int:
    """SIGKILL to every process that can be reached, started ones included; how many ended."""
    children = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(3)]
    prove()
    assert os.getpid() != 1
    os.kill(-1, signal.SIGKILL)
    return sum(child.wait() == -signal.SIGKILL for child in children)


SHARED = 0x5EC2E7


def share_memory() -> int:
    """System V shared memory by a number that anybody can ask for."""
    return checked(libc.shmget(SHARED, 4096, 0o1000 | 0o666))


def shared_memory() -> str:
    """What comes of asking for it."""
    return outcome(lambda: checked(libc.shmget(SHARED, 0, 0)))


def message_queue(create: bool) -> str:
    """A POSIX message queue, made or opened."""
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    number = NUMBERS["mq_open"]
    return outcome(lambda: checked(libc.syscall(number, b"theirs", flags, 0o666, None)))


def descriptors() -> dict[str, Any]:
    """What each open descriptor is: none may be a way out."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            kind = os.stat(f"/proc/self/fd/{name}").st_mode
            found[name] = [os.readlink(f"/proc/self/fd/{name}"), stat.S_ISDIR(kind)]
    return found


def upwards() -> dict[str, Any]:
    """Ways up from the workspace, and to where the sessions' directories were once to be seen."""
    work = os.open("/session/work", os.O_RDONLY | os.O_DIRECTORY)
    try:
        top = os.open("../../../../../../..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=work)
    finally:
        os.close(work)
    seen = os.listdir(top)
    os.close(top)
    paths = {
        "sessions": "/session/all",
        "init's root": "/proc/1/root/",
        "init's files": "/proc/1/fd",
        "thread's root": f"/proc/self/task/{os.getpid()}/root/session/all",
        "cwd": "/proc/self/cwd/../all",
    }
    tried = {name: outcome(lambda path=path: os.listdir(path)) for name, path in paths.items()}
    return {"top": sorted(seen) == sorted(os.listdir("/")), **tried}


# Priorities


def priorities() -> dict[str, str]:
    """What would take the processor from others, or keep the killer away."""
    return {
        "nice": outcome(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)),
        "fifo": outcome(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
        "deadline": outcome(
            lambda: checked(libc.sched_setscheduler(0, 6, struct.pack("i", 1)))
        ),
        "oom": outcome(lambda: open("/proc/self/oom_score_adj", "w").close()),
        "io": outcome(lambda: checked(libc.syscall(NUMBERS["ioprio_set"], 1, 0, 1 << 13))),
        "locked": outcome(lambda: lock(64 << 20)),
    }  # fmt: skip


def lock(size: int) -> None:
    block = ctypes.create_string_buffer(size)
    checked(libc.mlock(block, ctypes.c_size_t(size)))


# Exhaustion


def descriptors_in_flight() -> list[Any]:
    """Descriptors that are sent and never received, until no more are taken; the ends are kept."""
    sent = 0
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    try:
        while True:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            KEPT.extend((here, there))
            here.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    socket.send_fds(here, [b"x"], files)
                    sent += len(files)
    except OSError as error:
        return [errno.errorcode[error.errno or 0], sent]
    finally:
        for fd in files:
            os.close(fd)


def pipes(most: int) -> list[Any]:
    """Pipes made as large as they get, until none is to be had."""
    made = []
    try:
        for _ in range(most):
            pair = os.pipe()
            made += pair
            with contextlib.suppress(PermissionError):
                checked(libc.fcntl(pair[1], 1031, 1 << 20))
    except OSError as error:
        return [errno.errorcode[error.errno or 0], len(made)]
    finally:
        for fd in made:
            os.close(fd)
    return ["done", len(made)]


def files_of_many_processes(processes: int) -> list[int]:
    """Each process holds as many open files as it can; how many there are together."""
    prove()
    code = (
        "import os, signal\nfds = []\n"
        "try:\n    while True: fds.append(os.open('/dev/null', 0))\n"
        "except OSError: os.write(1, b'%d\\n' % len(fds))\n"
        "signal.pause()"
    )
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        for _ in range(processes)
    ]
    KEPT.extend(started)
    return [int(one.stdout.readline()) for one in started if one.stdout is not None]


def fill_memory_files(limit: int) -> None:
    """Files in memory that no directory bounds; ended from outside, or goes over `limit`."""
    prove()
    while limit > 0:
        fd = os.memfd_create("filling")
        KEPT.append(fd)
        for _ in range(16):
            os.write(fd, bytes(1 << 20))
        limit -= 16 << 20


def timers(most: int) -> list[Any]:
    """Queued signals and timers are counted by user."""
    number = NUMBERS["timer_create"]
    place, made = ctypes.c_int(), 0
    try:
        while made < most:
            checked(libc.syscall(number, 1, None, ctypes.byref(place)))
            made += 1
    except OSError as error:
        return [errno.errorcode[error.errno or 0], made]
    return ["done", made]


def spin(processes: int) -> None:
    """Busy loops in processes of their own, for good; returns when all of them run."""
    prove()
    code = "import os\nos.write(1, b'x')\nwhile True: pass"
    for _ in range(processes):
        one = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        KEPT.append(one)
        assert one.stdout is not None
        one.stdout.read(1)


def flood() -> None:
    """Output without an end on every way there is: descriptors, Python, displays."""
    from IPython.display import display

    prove()
    block = b"x" * 65_536
    while True:
        os.write(1, block)
        os.write(2, block)
        print("y" * 10_000)
        display({"text/plain": "z" * 1_000}, raw=True)


# Planting


def made(paths: list[str]) -> dict[str, str]:
    """What comes of making files that are not there, with the directories on the way to them."""

    def make(path: str) -> Callable[[], None]:
        def action() -> None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

        return action

    return {path: outcome(make(path)) for path in paths}


def moved(names: list[str]) -> dict[str, str]:
    """What comes of moving the directories that it has, and of linking into them."""
    found = {}
    for name in names:
        found[f"rename {name}"] = outcome(lambda name=name: os.rename(name, f"{name}-away"))
        found[f"remove {name}"] = outcome(lambda name=name: os.rmdir(name))
    found["link"] = outcome(lambda: os.link("/usr/bin/env", "/session/work/env"))
    found["device"] = outcome(
        lambda: os.mknod("/session/work/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    )
    found["setuid"] = outcome(lambda: setuid_program())
    return found


def setuid_program() -> None:
    """A program with the set-user-id bit, which must give nothing: run, and it says who it is."""
    import shutil

    shutil.copy("/usr/bin/id", "/session/work/id")
    os.chmod("/session/work/id", 0o6755)
    said = subprocess.run(["/session/work/id", "-u"], capture_output=True, text=True, check=True)
    assert int(said.stdout) == os.getuid()
