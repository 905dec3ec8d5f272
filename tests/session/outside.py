"""Isolated sessions seen from the host: their groups, their processes; and attempts inside them."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from replsvc.calls import CallRequest
from replsvc.coordinator import Coordinator
from replsvc.run import Run
from replsvc.session import Session

ATTEMPTS = Path(__file__).with_name("attempts.py")


def given() -> dict[str, Any]:
    """What a session is opened with so that `attempt` works in it."""
    return {
        "files": {"attempts.py": {"text": ATTEMPTS.read_text()}},
        "env": {"OUTSIDE_PID_NAMESPACE": str(Path("/proc/self/ns/pid").readlink())},
    }


def cell(name: str, *arguments: Any) -> str:
    """Code that prints what a function of attempts.py finds."""
    packed = json.dumps(arguments)
    return f"import attempts, json\nprint(json.dumps(attempts.{name}(*json.loads({packed!r}))))"


async def attempt(session: Session, name: str, *arguments: Any) -> Any:
    """What a function of attempts.py found; fails if it was not tried, or raised."""
    call = await session.run(cell(name, *arguments))
    assert call.status == "ok", call.text
    return json.loads(call.output.text)


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
        return [pid for pid, fd in self._handles.items() if not select.select([fd], [], [], 0)[0]]

    def wait_gone(self, timeout_s: float = 30) -> None:
        """Wait until the last one has ended."""
        for pid, fd in self._handles.items():
            assert select.select([fd], [], [], timeout_s)[0], f"process {pid} is still there"

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
