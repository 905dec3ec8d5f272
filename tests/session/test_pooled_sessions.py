"""Sessions whose kernels waited for them: whatever a session is promised holds for them too."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from outside import attempt, below, given, kernel_pid

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.session import Session
from replsvc.session_values import FileContent, Mount

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    limits = Limits(interrupt_grace_s=0.5)
    config = Config(isolation="best", limits=limits, pool_min=2, pool_max=2)
    async with Coordinator(config) as coordinator:
        await coordinator.check()
        yield coordinator


async def waiting(coordinator: Coordinator) -> set[int]:
    """The kernels that wait for a session, once the pool is full."""
    (backend,) = coordinator._backends._servers._backends.values()
    pool = backend._pool
    with trio.fail_after(30):
        while len(spares := [one for some in pool._spares.values() for one in some]) < 2:
            await pool._changed.wait()
            await trio.lowlevel.checkpoint()
    return {spare.made.process.pid or 0 for spare in spares}


def pid_of(session: Session) -> int:
    assert session._slot.current is not None
    return session._slot.current.kernel.info.pid or 0


async def test_files_and_variables_are_there_before_the_first_cell(
    coordinator: Coordinator,
) -> None:
    ready = await waiting(coordinator)
    files = {"data/a.txt": FileContent(text="ä")}
    async with coordinator.session(files=files, env={"MINE": "5"}) as session:
        assert pid_of(session) in ready
        call = await session.run(
            "import os\n"
            "print(open('data/a.txt').read(), os.environ['MINE'], os.getcwd(), *os.listdir('data'))"
        )
        assert call.text == "ä 5 /session/work a.txt"


async def test_it_is_isolated_and_limited_like_any_other(coordinator: Coordinator) -> None:
    ready = await waiting(coordinator)
    async with coordinator.session(**given()) as session:
        assert pid_of(session) in ready
        assert (await attempt(session, "prove"))["pid"] == 2
        info = await session.info()
        assert info.isolation in ("full", "partial")
        if info.workspace_bound == "hard":
            size = "import os\ns = os.statvfs('.')\ns.f_blocks * s.f_frsize"
            assert int((await session.run(size)).text[3:]) <= (info.limits.workspace_bytes or 0)
        call = await session.run("open('/session/other', 'w')")
        assert call.status == "error"


async def test_a_restart_and_a_death_take_from_the_pool_and_keep_the_files(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session() as session:
        await session.run("open('kept', 'w').write('5')")
        for end in (session.restart, lambda: session.run("import os; os._exit(3)")):
            ready = await waiting(coordinator)
            await end()
            call = await session.run("print(open('kept').read()); open('kept', 'a').write('5')")
            assert call.text.startswith("5")
            assert pid_of(session) in ready
        await session.reset()
        assert (await session.run("import os; os.listdir()")).text == "=> []"


async def test_each_call_of_a_session_without_memory_has_a_kernel_of_its_own(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(lifetime="call") as session:
        pids = set()
        for _ in range(3):
            pids.add(pid_of(session))
            assert (await session.run("x = globals().get('x', 0) + 1; x")).text == "=> 1"
            while session._slot.current is None:
                await trio.lowlevel.checkpoint()
        assert len(pids) == 3


async def test_what_is_mounted_is_there(coordinator: Coordinator, tmp_path: Path) -> None:
    ready = await waiting(coordinator)
    (tmp_path / "data").write_text("5")
    mounts = [Mount(source=str(tmp_path / "data"), target="data")]
    async with coordinator.session(mounts=mounts) as session:
        assert pid_of(session) not in ready
        assert (await session.run("open('data').read()")).text == "=> '5'"


async def test_two_sessions_have_nothing_of_each_other(coordinator: Coordinator) -> None:
    await waiting(coordinator)
    async with coordinator.session() as one, coordinator.session() as other:
        await one.run("x = 5; open('mine', 'w').close()")
        code = "import os, random\nprint('x' in globals(), os.listdir())"
        assert (await other.run(code)).text == "False []"
        numbers = {(await s.run("import random; random.random()")).text for s in (one, other)}
        assert len(numbers) == 2


async def test_the_end_of_a_session_ends_its_kernel_and_removes_its_group(
    coordinator: Coordinator,
) -> None:
    ready = await waiting(coordinator)
    async with coordinator.session() as session:
        pid = kernel_pid(session)
        assert pid in ready
        own = [
            path
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            for path in Path("/sys/fs/cgroup").glob(f"*{line.split(':')[2]}")
            if "/s-spare-" in str(path)
        ]
    assert pid not in below(os.getpid())
    assert not any(path.exists() for path in own)
    await waiting(coordinator)
    assert sorted(path.name[:7] for path in coordinator._workspaces.iterdir()) == []
