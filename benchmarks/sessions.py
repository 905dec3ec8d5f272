"""Sessions that come and go: ready, closed, and how many a second."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import trio
from figures import Table

from replsvc import Config, Coordinator
from replsvc.session_values import SessionRequest

# What a pool gets to be full again, between two sessions of a measurement.
FULL_AGAIN_S = 0.15
AT_A_TIME = 4


async def sessions(table: Table, n: int, isolation: str) -> None:
    """All figures of sessions that come and go."""
    await _one_by_one(table, "forked" if isolation != "none" else "started", n, isolation, {})
    if isolation != "none":
        await _one_by_one(table, "from the pool", n, isolation, {"pool_min": 4, "pool_max": 8})
    await _sustained(table, 2.0 if n < 200 else 20.0, isolation)


def _config(data: str, isolation: str, pool: dict[str, int]) -> Config:
    return Config.model_validate(
        {"isolation": isolation, "data": Path(data), "pool_max": 0, **pool}
    )


async def _one_by_one(table: Table, how: str, n: int, isolation: str, pool: dict[str, int]) -> None:
    with tempfile.TemporaryDirectory() as data:
        async with Coordinator(_config(data, isolation, pool)) as coordinator:
            await coordinator.check()
            async with coordinator.session():
                pass  # what is started once, such as a fork server, is started now
            ready: list[float] = []
            closed: list[float] = []
            for _ in range(max(10, n // 6)):
                if pool:
                    await trio.sleep(FULL_AGAIN_S)
                begin = time.perf_counter()
                session = await coordinator.open(SessionRequest())
                assert (await session.run("1+1")).text == "=> 2"
                ready.append((time.perf_counter() - begin) * 1e3)
                begin = time.perf_counter()
                await coordinator.close(session.id)
                closed.append((time.perf_counter() - begin) * 1e3)
            table.add(f"session ready, {how}", ready, "ms")
            if not pool:
                table.add("close until nothing is left", closed, "ms")


async def _sustained(table: Table, for_s: float, isolation: str) -> None:
    """Sessions opened and closed without a pause, a few at a time, second by second."""
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as data:
        async with Coordinator(_config(data, isolation, {"pool_max": 8})) as coordinator:
            async with coordinator.session():
                pass
            end = time.perf_counter() + for_s

            async def loop() -> None:
                while time.perf_counter() < end:
                    session = await coordinator.open(SessionRequest())
                    await coordinator.close(session.id)
                    stamps.append(time.perf_counter())

            async with trio.open_nursery() as nursery:
                for _ in range(AT_A_TIME):
                    nursery.start_soon(loop)
    first = end - for_s
    rates = [float(sum(first + s <= t < first + s + 1 for t in stamps)) for s in range(int(for_s))]
    table.add("opened and closed, sustained", rates, "1/s")
