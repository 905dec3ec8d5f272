"""Many sessions at once: the memory of each, whether all answer, and what they cost idle."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from figures import Table, available_kb, cpu_ticks, pss_kb, tree

from replsvc import Config, Coordinator
from replsvc.session import Session
from replsvc.session_values import SessionRequest

PRELOADED = ("numpy", "pandas", "matplotlib")
# Descriptors of the coordinator's for each session, and some for itself.
DESCRIPTORS = 16
OWN_DESCRIPTORS = 1_000
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
    """So many live sessions: each answers, and together they do nothing when nobody asks.

    A coordinator has as many as it may open descriptors for; where that is not enough, several
    have them together.
    """
    parts = -(-sessions // _most_sessions(sessions))
    shares = [sessions // parts + (place < sessions % parts) for place in range(parts)]
    me = os.getpid()
    available = available_kb()
    async with trio.open_nursery() as nursery:
        started = [await nursery.start(_part, [str(share), isolation]) for share in shares]
        begin = time.perf_counter()
        for part in started:
            await part.ask("open")
        print(f"({sessions} sessions of {parts} coordinators, {time.perf_counter() - begin:.1f} s)")
        await trio.sleep(SETTLED_S)
        count = sessions * 1024
        for how, used in (("PSS", pss_kb(tree(me))), ("MemAvailable", available - available_kb())):
            table.add(f"memory a session, {sessions} live, by {how}", [used / count], "MiB")
        answers = [one for part in started for one in await part.ask("answer")]
        assert len(answers) == sessions
        table.add("1+1 with all of them live", answers, "ms")
        await trio.sleep(SETTLED_S)
        pids = tree(me) - {me}
        services = [part.pid for part in started]
        before, own = cpu_ticks(pids), cpu_ticks(services)
        await trio.sleep(IDLE_S)
        table.add("CPU of all of them idle, in 15 s", [float(cpu_ticks(pids) - before)], "ticks")
        table.add("the same of the services", [float(cpu_ticks(services) - own)], "ticks")
        for part in started:
            await part.ask("close")


class _Part:
    """A coordinator in a process of its own, which does what it is asked."""

    def __init__(self, process: trio.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid, self._stdin, self._stdout = process.pid, process.stdin, process.stdout

    async def ask(self, what: str) -> list[float]:
        await self._stdin.send_all(f"{what}\n".encode())
        said = b""
        while not said.endswith(b"\n"):
            piece = await self._stdout.receive_some()
            if not piece:
                raise RuntimeError(f"a coordinator ended when it was asked to {what}")
            said += piece
        answer: list[float] = json.loads(said)
        return answer


async def _part(arguments: list[str], *, task_status: trio.TaskStatus[_Part]) -> None:
    command = [sys.executable, __file__, *arguments]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        task_status.started(_Part(process))
        if code := await process.wait():
            raise RuntimeError(f"a coordinator ended with {code}")
    finally:
        process.kill()


async def _serve(sessions: int, isolation: str) -> None:
    """What such a process does: a line in, what came of it as a line out."""
    asked = trio.lowlevel.FdStream(os.dup(0))
    async with AsyncExitStack() as stack:
        live: _Live | None = None
        while word := (await asked.receive_some(16)).decode().strip():
            said: list[float] = []
            if word == "open":
                live = await stack.enter_async_context(_live(sessions, isolation, ()))
            elif word == "answer":
                assert live is not None
                said = await live.answers()
            else:
                await stack.aclose()
            os.write(OUT, json.dumps(said).encode() + b"\n")
            if word == "close":
                return


class _Live:
    def __init__(self, sessions: list[Session], available: int, pss: int, own: int) -> None:
        self.sessions = sessions
        self._available, self._pss, self._own = available, pss, own

    async def answers(self) -> list[float]:
        """How long each takes to answer, in milliseconds."""
        took: list[float] = []
        for session in self.sessions:
            begin = time.perf_counter()
            assert (await session.run("1+1")).text == "=> 2"
            took.append((time.perf_counter() - begin) * 1e3)
        return took

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
    assert _most_sessions(sessions) == sessions
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


def _most_sessions(wanted: int) -> int:
    """How many of them one coordinator may have the descriptors for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = DESCRIPTORS * wanted + OWN_DESCRIPTORS
    if soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
        except (OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            needed = hard
    return min(wanted, max(1, (needed - OWN_DESCRIPTORS) // DESCRIPTORS))


if __name__ == "__main__":
    # What is printed on the way is not an answer.
    OUT = os.dup(1)
    os.dup2(2, 1)
    trio.run(_serve, int(sys.argv[1]), sys.argv[2])
