"""Many sessions at once: the memory of each, whether all answer, and what they cost idle."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from figures import Table, available_kb, cpu_ticks, pss_kb, tree

from replsvc import Config, Coordinator
from replsvc.session import Session
from replsvc.session_values import SessionRequest

PRELOADED = ("numpy", "pandas", "matplotlib")
# Descriptors of the coordinator's for each session, and some for itself.
DESCRIPTORS = 24
AT_A_TIME = 8
SETTLED_S = 3.0
IDLE_S = 15.0


async def memory(table: Table, sessions: int, isolation: str) -> None:
    """Memory of live sessions, with and without libraries that the fork server has imported."""
    kinds: list[tuple[str, tuple[str, ...]]] = [("plain", ())]
    if isolation != "none":
        kinds.append(("preloaded", PRELOADED))
    for kind, preload in kinds:
        async with _live(sessions, isolation, preload) as live:
            live.report(table, kind)


async def density(table: Table, sessions: int, isolation: str) -> None:
    """So many live sessions: each answers, and together they do nothing when nobody asks."""
    async with _live(sessions, isolation, ()) as live:
        live.report(table, f"{sessions} live")
        answers: list[float] = []
        for session in live.sessions:
            begin = time.perf_counter()
            assert (await session.run("1+1")).text == "=> 2"
            answers.append((time.perf_counter() - begin) * 1e3)
        table.add("1+1 with all of them live", answers, "ms")
        await trio.sleep(SETTLED_S)
        pids = tree(os.getpid())
        before, own = cpu_ticks(pids), cpu_ticks([os.getpid()])
        await trio.sleep(IDLE_S)
        table.add("CPU of all of them idle, in 15 s", [float(cpu_ticks(pids) - before)], "ticks")
        table.add("the same of the service", [float(cpu_ticks([os.getpid()]) - own)], "ticks")


class _Live:
    def __init__(self, sessions: list[Session], available: int, pss: int, own: int) -> None:
        self.sessions = sessions
        self._available, self._pss, self._own = available, pss, own

    def report(self, table: Table, kind: str) -> None:
        """What each session has cost since there was none."""
        me, count = os.getpid(), len(self.sessions) * 1024
        pss = pss_kb(tree(me)) - self._pss + pss_kb({me}) - self._own
        table.add(f"memory a session, {kind}, by PSS", [pss / count], "MiB")
        used = self._available - available_kb()
        table.add(f"memory a session, {kind}, by MemAvailable", [used / count], "MiB")


@asynccontextmanager
async def _live(sessions: int, isolation: str, preload: tuple[str, ...]) -> AsyncIterator[_Live]:
    """So many sessions, each of which has run something."""
    _allow_descriptors(DESCRIPTORS * sessions + 1_000)
    settings: dict[str, Any] = {
        "isolation": isolation,
        "max_sessions": sessions + 10,
        "pool_max": 0,
        "environments": {"default": {"preload": preload}},
        "limits": {"idle_timeout_s": None, "startup_timeout_s": 120.0},
    }
    me = os.getpid()
    with tempfile.TemporaryDirectory() as data:
        config = Config.model_validate({**settings, "data": Path(data)})
        async with Coordinator(config) as coordinator:
            async with coordinator.session() as session:
                await session.run("1+1")
            await trio.sleep(SETTLED_S)
            live = _Live([], available_kb(), pss_kb(tree(me)), pss_kb({me}))
            begin = time.perf_counter()
            room = trio.CapacityLimiter(AT_A_TIME)

            async def one() -> None:
                async with room:
                    session = await coordinator.open(SessionRequest())
                    assert (await session.run("1+1")).text == "=> 2"
                    live.sessions.append(session)

            async with trio.open_nursery() as nursery:
                for _ in range(sessions):
                    nursery.start_soon(one)
            print(f"({sessions} sessions opened in {time.perf_counter() - begin:.1f} s)")
            await trio.sleep(SETTLED_S)
            yield live


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(count, hard)))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{count} descriptors are needed and {hard} allowed ({error}): raise `ulimit -n`"
        ) from None
