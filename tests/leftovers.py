"""What a test must not leave behind: processes, and directories in the temporary directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "replsvc"
# Python's own helpers live as long as the process that used multiprocessing.
LASTING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is at one instant: every process of this machine, our directories."""

    pids: frozenset[int]
    directories: frozenset[Path]


def snapshot(temporary: Path) -> Snapshot:
    """Look at what is there now; `temporary` is where this run's temporary directories go."""
    return Snapshot(
        frozenset(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()),
        frozenset(path for path in temporary.iterdir() if path.name.startswith(PREFIX)),
    )


def _ours(pid: int, places: Sequence[bytes]) -> str | None:
    """The command of `pid` when it is our child, or has one of `places` in its environment.

    The second finds grandchildren that lost their parent: a kernel's home is in a place of ours.
    """
    proc = Path(f"/proc/{pid}")
    try:
        status = (proc / "status").read_text().splitlines()
        command = (proc / "cmdline").read_bytes()
        # In the middle of an exec it has memory, but neither a command nor an environment yet.
        while not command and any(line.startswith("VmSize:") for line in status):
            os.sched_yield()
            status = (proc / "status").read_text().splitlines()
            command = (proc / "cmdline").read_bytes()
        # What has ended has none, and is of interest only when it waits for us.
        child = f"PPid:\t{os.getpid()}" in status
        environment = b"" if child else (proc / "environ").read_bytes()
    except OSError:
        return None  # it is gone, or somebody else's
    if any(name in command for name in LASTING):
        return None
    if not child and not any(place in environment for place in places):
        return None
    words = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return words[:300] or "ended, but nobody waited for it"


def _end(pid: int, places: Sequence[bytes]) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _ours(pid, places):  # the pid may have been given to another by now
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def left_since(before: Snapshot, temporary: Path, places: Sequence[Path]) -> list[str]:
    """One line for each thing that is there now and was not `before`; processes are ended."""
    marks = [os.fsencode(place) for place in (temporary, *places)]
    now = snapshot(temporary)
    found = [f"directory {path}" for path in sorted(now.directories - before.directories)]
    for pid in sorted(now.pids - before.pids):
        if (command := _ours(pid, marks)) is not None:
            found.append(f"process {pid}: {command}")
            _end(pid, marks)
    return found
