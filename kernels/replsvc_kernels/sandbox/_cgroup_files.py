"""A control group as a directory: its files in versions 1 and 2, its members, its end."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Sequence

PERIOD_US = 100_000

# What is asked: file and, where a file has several, the key of the line.
_V1 = {
    "memory_now": ("memory.usage_in_bytes", ""),
    "memory_peak": ("memory.max_usage_in_bytes", ""),
    "oom_kills": ("memory.oom_control", "oom_kill"),
    "cpu_ns": ("cpuacct.usage", ""),
}
_V2 = {
    "memory_now": ("memory.current", ""),
    "memory_peak": ("memory.peak", ""),
    "oom_kills": ("memory.events", "oom_kill"),
    "cpu_us": ("cpu.stat", "usage_usec"),
}
_BOTH = {
    "pids_now": ("pids.current", ""),
    "pids_peak": ("pids.peak", ""),
    "pids_refused": ("pids.events", "max"),
}


class Directory:
    """One group in one hierarchy."""

    def __init__(self, path: str, version: int, controllers: frozenset[str]) -> None:
        self.path = path
        self.version = version
        self.controllers = controllers
        self._files = {**_BOTH, **(_V1 if version == 1 else _V2)}

    def child(self, name: str) -> Directory:
        """Make a group below this one. Raises `OSError`."""
        path = f"{self.path}/{name}"
        os.mkdir(path)
        return Directory(path, self.version, self.controllers)

    def limit_memory(self, size: int) -> None:
        """Bound memory, with swap counted in or forbidden."""
        if "memory" not in self.controllers:
            return
        if self.version == 1:
            self._set("memory.limit_in_bytes", size)
            self._try_set("memory.memsw.limit_in_bytes", size)
            self._try_set("memory.swappiness", 0)
        else:
            self._set("memory.max", size)
            self._try_set("memory.swap.max", 0)
            self._try_set("memory.zswap.max", 0)

    def limit_processes(self, count: int) -> None:
        """Bound processes and threads, together."""
        if "pids" in self.controllers:
            self._set("pids.max", count)

    def limit_cpu(self, cpus: float | None, weight: int | None) -> None:
        """Bound processors at a time, and set the share of them against others (100 is fair)."""
        if "cpu" not in self.controllers:
            return
        if cpus is not None:
            quota = max(1000, round(cpus * PERIOD_US))
            if self.version == 1:
                self._set("cpu.cfs_period_us", PERIOD_US)
                self._set("cpu.cfs_quota_us", quota)
            else:
                self._set("cpu.max", f"{quota} {PERIOD_US}")
        if weight is not None:
            if self.version == 1:
                self._set("cpu.shares", max(2, weight * 1024 // 100))
            else:
                self._set("cpu.weight", weight)

    def number(self, question: str) -> int | None:
        """An answer in the unit of its file; None where this hierarchy does not count it."""
        if question not in self._files:
            return None
        name, key = self._files[question]
        text = read(f"{self.path}/{name}")
        if text is None:
            return None
        if not key:
            return int(text)
        pairs = (line.split() for line in text.splitlines())
        return next((int(words[1]) for words in pairs if len(words) == 2 and words[0] == key), None)

    def cpu_s(self) -> float | None:
        """Seconds of processor time used, of user and system together."""
        if (ns := self.number("cpu_ns")) is not None:
            return ns / 1e9
        return us / 1e6 if (us := self.number("cpu_us")) is not None else None

    def _set(self, name: str, value: object) -> None:
        write(f"{self.path}/{name}", str(value))

    def _try_set(self, name: str, value: object) -> None:
        # Absent where the kernel counts no swap, which then can't be used beyond the limit.
        if os.path.exists(f"{self.path}/{name}"):
            with contextlib.suppress(OSError):
                self._set(name, value)


# Files


def read(path: str) -> str | None:
    """A file's text; None when there is none, or it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    # Not a file object: this is asked after every cell that took a moment.
    try:
        text = b""
        while part := os.read(descriptor, 65_536):
            text += part
        return text.decode()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    """Write to a group's file in one call. Raises `OSError` that names the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {text!r} to {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def below(path: str) -> list[str]:
    """The groups directly below a group, as paths."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def members(path: str) -> list[int]:
    """The pids in a group as we see them; those of other pid namespaces are not among them."""
    return [pid for pid in map(int, (read(f"{path}/cgroup.procs") or "").split()) if pid > 0]


# Ownership


def make_and_lock(path: str) -> int:
    """Make a group that is ours as long as the returned descriptor is open. Raises `OSError`."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Before the lock it looked abandoned, and somebody may have swept it.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def remove_if_abandoned(path: str) -> bool:
    """End and remove a group, with all below it, unless its owner lives; whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


# Ending


def kill(paths: Sequence[str]) -> None:
    """Send SIGKILL to all in one session's groups, one directory a hierarchy, but ourselves.

    Where the kernel can't end a group at once it first takes away the right to fork.
    """
    for path in paths:
        if os.path.exists(f"{path}/cgroup.kill"):
            with contextlib.suppress(OSError):
                write(f"{path}/cgroup.kill", "1")
    for path in paths:
        if os.path.exists(f"{path}/pids.max"):
            with contextlib.suppress(OSError):
                write(f"{path}/pids.max", "0")
    for path in paths:
        for pid in members(path):
            _kill_member(pid, path)


def _kill_member(pid: int, path: str) -> None:
    if pid == os.getpid():
        return
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if pid in members(path):  # else the pid was given to somebody else meanwhile
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def remove(paths: Sequence[str], timeout_s: float) -> None:
    """End what is in one session's groups, wait until they are empty, remove them.

    Raises `TimeoutError` with the pids that did not end.
    """
    end = time.monotonic() + timeout_s
    left = list(paths)
    while left := [path for path in left if not _removed(path)]:
        kill(left)
        pids = sorted({pid for path in left for pid in members(path)})
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError(f"the control group {left[0]} does not empty: {pids or 'unknown'}")
        _wait_ended(pids, remaining)


def remove_tree(path: str, timeout_s: float = 2.0) -> None:
    """End and remove a group and all groups below it. Raises `TimeoutError`."""
    for inner in below(path):
        remove_tree(inner, timeout_s)
    remove([path], timeout_s)


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _wait_ended(pids: Sequence[int], timeout_s: float) -> None:
    poll = select.poll()
    handles = []
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                handles.append(os.pidfd_open(pid))
        if not handles:
            # They ended, and the kernel is about to forget them: it tells nobody when.
            timeout_s = min(timeout_s, 0.001)
        for handle in handles:
            poll.register(handle, select.POLLIN)
        end = time.monotonic() + timeout_s
        waiting = len(handles)
        while True:
            ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
            for handle, _ in ready:
                poll.unregister(handle)
            waiting -= len(ready)
            if not ready or not waiting:
                return
    finally:
        for handle in handles:
            os.close(handle)
