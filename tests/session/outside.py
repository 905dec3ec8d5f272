"""Isolated sessions seen from the host: their groups, their processes; and attempts inside them."""

from __future__ import annotations

import json
import os
import select
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from patience import promptly
from replsvc.calls import CallRequest
from replsvc.coordinator import Coordinator
from replsvc.run import Run
from replsvc.session import Session

HERE = Path(__file__).parent


def given() -> dict[str, Any]:
    """What a session is opened with so that `attempt` and `attack` work in it."""
    return {
        "files": {
            name: {"text": (HERE / name).read_text()} for name in ("attempts.py", "attacks.py")
        },
        "env": {"OUTSIDE_PID_NAMESPACE": str(Path("/proc/self/ns/pid").readlink())},
    }


def cell(name: str, *arguments: Any, module: str = "attempts") -> str:
    """Code that prints what a function of attempts.py finds."""
    packed = json.dumps(arguments)
    return f"import {module}, json\nprint(json.dumps({module}.{name}(*json.loads({packed!r}))))"


async def attempt(session: Session, name: str, *arguments: Any) -> Any:
    """What a function of attempts.py found; fails if it was not tried, or raised."""
    call = await session.run(cell(name, *arguments))
    assert call.status == "ok", call.text
    return json.loads(call.output.text)


async def attack(session: Session, name: str, *arguments: Any) -> Any:
    """As `attempt`, for a function of attacks.py."""
    call = await session.run(cell(name, *arguments, module="attacks"))
    assert call.status == "ok", call.text
    try:
        return json.loads(call.output.text)
    except ValueError:
        raise AssertionError(f"said {call.output.text[:300]!r}") from None


async def answers(session: Session) -> None:
    """Within a second, whatever another session does."""
    with promptly():
        assert (await session.run("6 * 7")).text == "=> 42"


@asynccontextmanager
async def limited(coordinator: Coordinator, **limits: int) -> AsyncIterator[Session]:
    """A session with limits of its own."""
    async with coordinator.session(**given(), limits=limits) as session:
        yield session


@asynccontextmanager
async def watched(coordinator: Coordinator, neighbour: Session) -> AsyncIterator[None]:
    """While the body runs every session's status is told within a second, again and again.

    The neighbour runs a cell in between, which is what paces it.
    """
    told, first = 0, trio.Event()

    async def ask() -> None:
        nonlocal told
        while True:
            with promptly():
                infos = [await session.info() for session in coordinator.list()]
            assert neighbour.id in {info.id for info in infos}
            told += 1
            first.set()
            call = await neighbour.run("6 * 7")
            assert call.text == "=> 42", call

    # The first one asks the environment what it has, once, which takes what starting a Python does.
    await neighbour.info()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await first.wait()
        before = told
        yield
        while told == before:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def start(session: Session, code: str, said: bytes) -> Run:
    """A cell that runs, and has said something."""
    run = await session.submit(CallRequest(input={"code": code}))
    seen = b""
    async for events in session.log.follow(session.id, call_id=run.id):
        seen += b"".join(event.blob or b"" for event in events)
        if said in seen:
            break
    return run


def kernel_pid(session: Session) -> int:
    """Its kernel's pid on this host."""
    current = session._slot.current
    assert current is not None
    assert current.kernel.info.pid is not None
    return current.kernel.info.pid


def groups(coordinator: Coordinator, session: Session) -> list[Path]:
    """The directories of a session's control groups, one a hierarchy."""
    root = coordinator._backends._servers.cgroups
    assert root is not None
    return [group for path in root.paths for group in Path(path).glob(f"s-{session.id[:60]}-*")]


def group_file(coordinator: Coordinator, session: Session, name: str) -> str | None:
    """A file of a session's control group, in whichever hierarchy has it."""
    for group in groups(coordinator, session):
        with suppress(FileNotFoundError):
            return (group / name).read_text().strip()
    return None


def _ended(pidfd: int, timeout_s: float) -> bool:
    poll = select.poll()  # there may be more descriptors than select can number
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Held:
    """Processes held by pidfd, so that no other is mistaken for them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._handles: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                self._handles[pid] = os.pidfd_open(pid)

    def __len__(self) -> int:
        return len(self._handles)

    def alive(self) -> list[int]:
        """Those that have not ended."""
        return [pid for pid, fd in self._handles.items() if not _ended(fd, 0)]

    def wait_gone(self, timeout_s: float = 30) -> None:
        """Wait until the last one has ended."""
        for pid, fd in self._handles.items():
            assert _ended(fd, timeout_s), f"process {pid} is still there"

    def close(self) -> None:
        """Let go of them."""
        while self._handles:
            os.close(self._handles.popitem()[1])


def members(coordinator: Coordinator, session: Session) -> Held:
    """The processes in a session's control groups."""
    return Held(
        {
            int(line)
            for group in groups(coordinator, session)
            for line in (group / "cgroup.procs").read_text().split()
        }
    )


def below(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *below(child)]
    return found
