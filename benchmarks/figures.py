"""What figures are: values with a name, their median and p99, and the goal beside them."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

# For isolated sessions on two cores, medians unless said otherwise.
GOALS = {
    "session ready, forked": "<= 15, p99 <= 40",
    "session ready, from the pool": "<= 4",
    "opened and closed, sustained": ">= 60",
    "1+1 warm, in process": "<= 1.5",
    "1+1 warm, over HTTP keep-alive": "<= 3",
    "calls a second, 8 sessions at once": ">= 1000",
    "10 MB of prints, all of it in the log": "<= 200",
    "memory a session, plain, by PSS": "<= 10",
    "memory a session, plain, by MemAvailable": "<= 10",
    "memory a session, preloaded, by PSS": "<= 14",
    "memory a session, preloaded, by MemAvailable": "<= 14",
    "1+1 with all of them live": "<= 5",
    "CPU of all of them idle, in 15 s": "0",
    "close until nothing is left": "<= 6",
    "CPU of a 1+1, in the kernel": "<= 0.7",
    "CPU of a 1+1, in the coordinator": "<= 0.4",
    "interrupt of a sleeping await, to its end": "<= 200",
    "pipes of a cell, made to closed": "<= 0.1",
}


class Table:
    """Collects rows and prints each as it comes."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}
        print(f"{'':52} {'median':>10} {'p99':>10} {'n':>6} {'unit':6} goal")

    def add(self, name: str, values: list[float], unit: str) -> None:
        values = sorted(values)
        row = {
            "median": statistics.median(values),
            "p99": values[min(len(values) - 1, int(len(values) * 0.99))],
            "n": len(values),
        }
        self.rows[f"{name} ({unit})"] = row
        print(
            f"{name:52} {row['median']:10.2f} {row['p99']:10.2f} {row['n']:6} {unit:6}"
            f" {GOALS.get(name, '')}",
            flush=True,
        )


def machine() -> str:
    """The machine's name for a report: processor, cores, memory, kernel, Python."""
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return (
        f"{os.cpu_count()} cores of {cpu}, {memory_kb / 1024**2:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def available_kb() -> int:
    """Memory that this machine has left, as the kernel sees it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/meminfo does not say what is available")


def cpu_ticks(pids: Iterable[int]) -> int:
    """Clock ticks that processes have used so far, of user and system together."""
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


def pss_kb(pids: set[int]) -> int:
    """Proportional set size of processes, as the kernel counts it."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return total


def tree(pid: int) -> set[int]:
    """`pid`'s descendants."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            found.update(children)
            todo += children
    return found


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3
