"""One session prints a gigabyte: what that does to the coordinator's memory and to a neighbour.

    python benchmarks/flood.py [--isolation best] [--bytes 1000000000]

The coordinator runs in this process and nothing else does. Its resident memory is looked at between
the neighbour's cells.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import trio

from replsvc import Config, Coordinator
from replsvc.session import Session

WARM_CELLS, QUIET_CELLS = 100, 500
LINE_BYTES = 1_000


def resident_mb() -> float:
    """What this process has in memory, in MB."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def p99(times_ms: list[float]) -> float:
    """The 99th percentile."""
    ordered = sorted(times_ms)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


async def cell_ms(session: Session) -> float:
    """How long a `1+1` takes."""
    begun = time.perf_counter()
    call = await session.run("1+1")
    assert call.text == "=> 2"
    return (time.perf_counter() - begun) * 1e3


async def measure(isolation: str, size: int) -> dict[str, float]:
    """The figures, by name with their units."""
    async with (
        Coordinator(Config.model_validate({"isolation": isolation})) as coordinator,
        coordinator.session() as loud,
        coordinator.session() as neighbour,
    ):
        for _ in range(WARM_CELLS):
            await cell_ms(neighbour)
        quiet = [await cell_ms(neighbour) for _ in range(QUIET_CELLS)]
        before = most = resident_mb()
        beside: list[float] = []
        begun = time.perf_counter()
        printed_s = 0.0

        async def flood() -> None:
            nonlocal printed_s
            line = f"'x' * {LINE_BYTES - 1}"
            call = await loud.run(f"for _ in range({size // LINE_BYTES}): print({line})")
            printed_s = time.perf_counter() - begun
            assert call.output.total_bytes + call.output.dropped_bytes >= size, call.output
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            while True:
                beside.append(await cell_ms(neighbour))
                most = max(most, resident_mb())
        return {
            "printed (MB/s)": size / 1e6 / printed_s,
            "coordinator grew (MB)": most - before,
            "neighbour's 1+1, quiet: median (ms)": statistics.median(quiet),
            "neighbour's 1+1, quiet: p99 (ms)": p99(quiet),
            "neighbour's 1+1, flooded: median (ms)": statistics.median(beside),
            "neighbour's 1+1, flooded: p99 (ms)": p99(beside),
            "p99 flooded / quiet": p99(beside) / p99(quiet),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isolation", default="best", choices=("best", "none"))
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    wanted = parser.parse_args()
    for name, value in trio.run(measure, wanted.isolation, wanted.bytes).items():
        print(f"{name:44} {value:10.2f}")


if __name__ == "__main__":
    main()
