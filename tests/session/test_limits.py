"""execution.md 27: each limit is crossed in a real session, typed, and the neighbour lives.

Limits that tests of isolation or of deadlines cross are in test_isolation.py,
test_workspace_bound.py and test_limits_and_deaths.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from outside import group_file, groups

from replsvc.calls import Call, CallRequest
from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import SessionNotFoundError
from replsvc.session import Session
from replsvc.session_values import lower_limits

MiB = 1 << 20
SPIN = "print('begun')\nwhile True: pass"
MakeConfig = Callable[..., Config]
isolated = pytest.mark.parametrize(
    "isolation", [pytest.param("best", marks=pytest.mark.needs("userns"))]
)


@asynccontextmanager
async def neighbours(coordinator: Coordinator, **limits: Any) -> AsyncIterator[Session]:
    """A session with these limits, and beside it one that must not notice."""
    async with coordinator.session() as neighbour:
        await neighbour.run("kept = 'as it was'")
        async with coordinator.session(limits=limits) as session:
            yield session
        assert (await neighbour.run("kept")).text == "=> 'as it was'"
        assert (await neighbour.info()).generation == 1


@asynccontextmanager
async def soft_neighbours(coordinator: Coordinator) -> AsyncIterator[Session]:
    """Their workspaces are no images, as where nobody may have a loop device."""
    coordinator._opener._workspaces.soft_because = "this test wants none"
    async with neighbours(coordinator) as session:
        yield session


def caused(call: Call) -> tuple[str, str | None, float | None]:
    return call.status, call.cause and call.cause.kind, call.cause and call.cause.limit


async def events(session: Session, kind: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in await session.log.read(session.id, kinds=[kind])]


# Processor time


async def test_processor_time_past_the_limit_ends_the_kernel_and_says_so(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, cpu_s=1) as session:
        await session.run("lost = 1")
        call = await session.run(SPIN)
        assert caused(call) == ("killed", "cpu", 1)
        assert call.cause is not None
        assert call.cause.peak is not None
        assert 1 <= call.cause.peak < 3
        assert call.state_lost
        assert call.output.text == "begun\n"
        assert "1 s of processor time" in call.text
        (died,) = await events(session, "kernel_died")
        assert (died["cause"]["kind"], died["cause"]["limit"]) == ("cpu", 1)
        # Each kernel has its own.
        assert (await session.run("'lost' in globals()")).text == "=> False"


@isolated
@pytest.mark.needs("cgroups")
async def test_all_processes_of_a_session_share_its_processor_time(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, cpu_s=1) as session:
        code = (
            "import subprocess, sys\n"
            "for _ in range(4): subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
            "import time; time.sleep(1000)"
        )
        assert caused(await session.run(code)) == ("killed", "cpu", 1)


@isolated
@pytest.mark.needs("cgroups")
async def test_a_process_in_the_background_is_ended_for_its_processor_time_too(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, cpu_s=1) as session:
        code = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'while 1: pass'])"
        assert (await session.run(code)).status == "ok"
        async for batch in session.log.follow(session.id):
            if any(event.kind == "kernel_died" for event in batch):
                break
        (died,) = await events(session, "kernel_died")
        assert died["cause"]["kind"] == "cpu"


@isolated
@pytest.mark.needs("cgroups")
async def test_the_share_of_the_processors_is_each_sessions_own(coordinator: Coordinator) -> None:
    async with neighbours(coordinator, cpu_weight=10, cpu_cores=0.5) as session:
        shares = group_file(coordinator, session, "cpu.shares")
        weight = group_file(coordinator, session, "cpu.weight")
        assert (shares or weight) == ("102" if shares else "10")
        quota = group_file(coordinator, session, "cpu.cfs_quota_us")
        most = group_file(coordinator, session, "cpu.max")
        assert (quota or most) == ("50000" if quota else "50000 100000")


# Time


async def test_a_late_call_says_its_limit_and_how_long_it_ran(coordinator: Coordinator) -> None:
    async with neighbours(coordinator, timeout_s=0.3) as session:
        call = await session.run(SPIN)
        assert caused(call) == ("timeout", "wall", 0.3)
        assert call.cause is not None
        assert call.cause.peak is not None
        assert call.cause.peak >= 0.3


async def test_a_session_ends_at_its_age_and_its_running_call_with_it(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator) as neighbour:
        session = await coordinator.open(
            neighbour._parts.request.model_copy(update={"id": None, "limits": {"wall_s": 1.5}})
        )
        running = await session.submit(CallRequest(input={"code": SPIN}))
        queued = await session.submit(CallRequest(input={"code": "1"}))
        call = await running.wait()
        assert caused(call) == ("killed", "wall", 1.5)
        assert call.output.text == "begun\n"
        assert (await queued.wait()).status == "cancelled"
        await session.closed.wait()
        changed = await events(session, "session_changed")
        assert [(e["state"], e["reason"], e["cause"]["kind"]) for e in changed] == [
            ("closed", "wall", "wall")
        ]
        with trio.fail_after(10):
            while (coordinator._workspaces / session.id).exists():
                await trio.lowlevel.checkpoint()
        with pytest.raises(SessionNotFoundError):
            coordinator.get(session.id)


async def test_an_idle_kernel_is_ended_with_a_cause(coordinator: Coordinator) -> None:
    async with neighbours(coordinator, idle_timeout_s=0.3) as session:
        async for batch in session.log.follow(session.id):
            if any(event.data.get("reason") == "idle" for event in batch):
                break
        (changed,) = await events(session, "session_changed")
        assert (changed["cause"]["kind"], changed["cause"]["limit"]) == ("idle", 0.3)
        assert changed["cause"]["peak"] >= 0.3


# Files


async def test_files_past_a_soft_bound_end_the_kernel_and_who_makes_room_goes_on(
    make_config: MakeConfig,
) -> None:
    async with (
        Coordinator(make_config(workspace_bytes=16 * MiB)) as coordinator,
        soft_neighbours(coordinator) as session,
    ):
        assert (await session.info()).workspace_bound == "soft"
        write = "open('big', 'wb').write(bytes(20 << 20))\nopen('more', 'wb').write(bytes(9999))"
        call = await session.run(f"{write}\nprint('written', flush=True)\nwhile True: pass")
        assert caused(call) == ("killed", "disk", 16 * MiB)
        assert call.cause is not None
        assert call.cause.peak is not None
        assert call.cause.peak > 16 * MiB
        assert call.output.text == "written\n"
        # There is time to make room, and nobody is ended for what is gone.
        assert (await session.run("import os; os.unlink('big')")).status == "ok"
        assert (await session.run("sum(range(10))")).text == "=> 45"
        assert len(await events(session, "kernel_died")) == 1


@isolated
@pytest.mark.needs("loop", "root")
async def test_a_kernel_that_a_full_workspace_ended_is_explained(coordinator: Coordinator) -> None:
    async with neighbours(coordinator, workspace_bytes=16 * MiB) as session:
        code = (
            "import mmap\nf = open('sparse', 'wb+'); f.truncate(64 << 20)\n"
            "m = mmap.mmap(f.fileno(), 0)\nfor n in range(0, 64 << 20, 4096): m[n] = 1"
        )
        call = await session.run(code)
        assert (call.status, call.cause and call.cause.kind) == ("killed", "disk")
        assert call.cause is not None
        assert call.cause.limit is not None
        assert 8 * MiB < call.cause.limit <= 16 * MiB


@isolated
async def test_a_file_that_is_too_large_is_the_codes_error_with_a_hint(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, file_bytes=3 * MiB) as session:
        call = await session.run("open('f', 'wb').write(bytes(4 << 20))")
        assert call.status == "error"
        assert call.details["hint"].startswith("One file may hold 3 MiB")


@isolated
async def test_too_many_open_files_are_the_codes_error_with_a_hint(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, open_files=64) as session:
        call = await session.run("files = []\nwhile True: files.append(open('f', 'w'))")
        assert call.status == "error"
        assert call.details["hint"].startswith("A process may have 64 files open")
        assert (await session.run("len(files)")).status == "ok"


# Processes and memory


@isolated
@pytest.mark.needs("cgroups")
async def test_refused_processes_are_the_codes_error_with_a_hint_and_counted(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, processes=32) as session:
        code = (
            "import threading\nstop = threading.Event()\n"
            "while True: threading.Thread(target=stop.wait, daemon=True).start()"
        )
        call = await session.run(code)
        assert (call.status, call.state_lost) == ("error", False)
        assert call.details["hint"].startswith("This session may have 32 processes")
        (hit,) = call.details["limits_hit"]
        assert (hit["kind"], hit["limit"]) == ("pids", 32)
        assert (await session.run("stop.set()")).details == {}


@isolated
@pytest.mark.needs("cgroups")
async def test_a_kernel_that_gives_up_for_want_of_processes_is_explained(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, processes=32) as session:
        # As libraries do whose threads can't be started.
        code = (
            "import os, threading\nstop = threading.Event()\n"
            "try:\n    while True: threading.Thread(target=stop.wait, daemon=True).start()\n"
            "except RuntimeError: os.abort()"
        )
        call = await session.run(code)
        assert caused(call) == ("killed", "pids", 32)
        call = await session.run("import os; os.abort()")
        assert caused(call) == ("killed", "signal", None)


@isolated
@pytest.mark.needs("cgroups")
async def test_a_child_that_used_too_much_memory_is_told_of_in_its_own_call(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, memory_bytes=128 * MiB) as session:
        code = (
            "import subprocess, sys\n"
            "hog = 'x = bytearray()\\nwhile True: x += bytes(1 << 20)'\n"
            "subprocess.run([sys.executable, '-c', hog]).returncode"
        )
        call = await session.run(code)
        assert (call.status, call.cause) == ("ok", None)
        (hit,) = call.details["limits_hit"]
        assert (hit["kind"], hit["limit"]) == ("oom", 128 * MiB)
        assert call.text == (
            "=> -9\n[a process was ended: the session used more than its memory of 128 MiB]"
        )
        assert (await session.run("import time; time.sleep(0.01)")).details == {}
        # And it is no reason for what happens later.
        call = await session.run("import os; os.kill(os.getpid(), 9)")
        assert caused(call) == ("killed", "signal", None)
        assert (await session.run("1")).text == "=> 1"
        directories = groups(coordinator, session)
        assert directories
    assert not any(directory.exists() for directory in directories)


# All of them


async def test_a_session_can_lower_each_limit_and_raise_none(make_config: MakeConfig) -> None:
    operator = {"cpu_s": 100, "cpu_cores": 2, "wall_s": 1000, "workspace_bytes": 64 * MiB}
    async with Coordinator(make_config(**operator)) as coordinator:
        lower = {"cpu_s": 50, "wall_s": 500, "workspace_bytes": 32 * MiB, "processes": 64}
        async with coordinator.session(limits=lower) as session:
            limits = (await session.info()).limits
            assert (limits.cpu_s, limits.wall_s) == (50, 500)
            assert limits.workspace_bytes == 32 * MiB
            description = await session.describe()
            assert "32 MiB" in description
            assert "50 s of processor time" in description
        for name, value in operator.items():
            for more in (value + 1, None):
                with pytest.raises(ValueError, match=f"{name} can be at most"):
                    lower_limits(Limits(**operator), {name: more})


@pytest.mark.parametrize("limit", ["(3, hard)", "(2, hard)"])
async def test_a_cell_that_lowers_the_limit_of_open_files_leaves_the_next_one_its_output(
    coordinator: Coordinator, limit: str
) -> None:
    async with neighbours(coordinator) as session:
        lower = (
            "import resource\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
            f"resource.setrlimit(resource.RLIMIT_NOFILE, {limit})\nprint('lower')"
        )
        assert (await session.run(lower)).text == "lower"
        for _ in range(3):
            assert (await session.run("print('still')\n1")).text == "still\n=> 1"
        # It is the code's own, and stays.
        call = await session.run("resource.getrlimit(resource.RLIMIT_NOFILE)[0]")
        assert call.text == f"=> {limit[1]}"


@pytest.mark.parametrize("limit", ["(3, 3)", "(2, 2)"])
async def test_a_kernel_that_can_not_be_given_another_cell_ends_and_says_why(
    coordinator: Coordinator, limit: str
) -> None:
    async with neighbours(coordinator) as session:
        lower = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, {limit})\n1"
        first = await session.run(lower)
        call = first if first.status == "killed" else await session.run("1")
        assert (call.status, call.state_lost) == ("killed", True)
        assert call.cause is not None
        assert (call.cause.kind, call.cause.exit_code) == ("exit", 171)
        assert "RLIMIT_NOFILE" in call.text
        assert (await session.run("6 * 7")).text == "=> 42"


# Output


async def test_output_past_the_rate_is_slowed_and_a_neighbours_is_not(
    coordinator: Coordinator,
) -> None:
    async with neighbours(coordinator, output_bytes_per_s=2_000, timeout_s=1) as session:
        loud = "print('o' * 999_999)\n'done'"
        # It would take minutes: the writer waits, and can be interrupted there.
        call = await session.run(loud)
        assert caused(call) == ("timeout", "wall", 1)
        assert not call.state_lost
        assert 2_000 <= call.output.total_bytes < 300_000
        assert call.output.dropped_bytes == 0
        async with coordinator.session() as other:
            call = await other.run(loud)
            assert (call.status, call.output.total_bytes) == ("ok", 1_000_000)
        assert (await session.run("1 + 1")).text == "=> 2"


async def test_slowed_output_is_whole(coordinator: Coordinator) -> None:
    async with neighbours(coordinator, output_bytes_per_s=200_000) as session:
        call = await session.run("for n in range(30_000): print(f'{n:09}')")
        assert (call.status, call.output.total_bytes) == ("ok", 300_000)
        assert call.output.total_lines == 30_000


# The ladder


@isolated
@pytest.mark.parametrize(
    "deaf",
    [
        "import signal\n"
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        "sum(range(10**15))",  # native code, in which no Python handler runs
    ],
)
async def test_what_heeds_nothing_ends_at_its_deadline_isolated_too(
    coordinator: Coordinator, deaf: str
) -> None:
    async with neighbours(coordinator) as session:
        await session.run("lost = 1")
        call = await session.run(deaf, timeout_s=0.5)
        assert caused(call) == ("timeout", "wall", 0.5)
        assert call.state_lost
        assert "names defined in it are lost" in call.text
        assert (await session.run("'lost' in globals()")).text == "=> False"
