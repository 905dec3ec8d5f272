"""execution.md 25, 27: how much a session's files may hold, and what happens past that.

As root an isolated session's workspace is a file system of its own, on a loop device.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import InvalidInputError
from replsvc.session import Session
from replsvc.session_values import FileContent, SessionRequest

MiB = 1 << 20
SIZE = 32 * MiB
FILL = "with open('big', 'wb', buffering=0) as f:\n    while True: f.write(bytes(1 << 20))"
hard = pytest.mark.needs("loop", "root", "userns")


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    limits = Limits(workspace_bytes=SIZE, interrupt_grace_s=0.5)
    async with Coordinator(Config(isolation="best", limits=limits)) as coordinator:
        yield coordinator


def devices(coordinator: Coordinator) -> int:
    """Loop devices that show files of its."""
    found = 0
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found += str(coordinator._workspaces) in path.read_text()
        except OSError:
            continue  # it was detached meanwhile
    return found


async def come_to(most: int, coordinator: Coordinator) -> None:
    """The system takes a device apart when its last mount was closed, and tells nobody."""
    with trio.move_on_after(20):
        while devices(coordinator) > most:
            await trio.lowlevel.checkpoint()
    assert devices(coordinator) <= most


def room(session: Session) -> int:
    size = os.statvfs(session._parts.workspace)
    return size.f_bavail * size.f_frsize


@hard
async def test_a_full_workspace_is_the_codes_error_and_nobody_elses(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session() as session, coordinator.session() as neighbour:
        assert (await session.info()).workspace_bound == "hard"
        before = room(neighbour)
        call = await session.run("kept = 1\n" + FILL)
        assert (call.status, call.state_lost, call.cause) == ("error", False, None)
        assert call.error is not None
        assert call.error.evalue.startswith("[Errno 28]")
        assert "32 MiB" in call.details["hint"]
        assert call.text.endswith(f"[{call.details['hint']}]")
        size = await session.run("import os; os.stat('big').st_size")
        assert 20 * MiB < int(size.text.removeprefix("=> ")) <= SIZE
        assert (await session.run("os.unlink('big'); kept")).text == "=> 1"
        assert room(neighbour) == before


@hard
async def test_the_number_of_files_is_bounded_too(coordinator: Coordinator) -> None:
    async with coordinator.session() as session:
        code = "for n in range(100_000): open(f'f{n}', 'w').close()"
        call = await session.run(code)
        assert call.error is not None
        assert call.error.evalue.startswith("[Errno 28]")
        assert int((await session.run("n")).text.removeprefix("=> ")) <= SIZE // 4096


@hard
async def test_files_outlive_kernels_and_a_reset_gives_an_empty_workspace(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(files={"given": {"text": "1"}}) as session:
        assert (await session.run("open('made', 'w').write('2')")).text == "=> 1"
        await session.restart()
        await session.run("import os; os._exit(1)")
        look = "import os; sorted(os.listdir('.')), open('given').read()"
        assert (await session.run(look)).text == "=> (['given', 'made'], '1')"
        await session.run(FILL)
        await session.reset()
        assert (await session.run(look)).text == "=> (['given'], '1')"
        assert room(session) > 20 * MiB


@hard
async def test_the_host_reaches_the_files_and_they_belong_to_the_session(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session() as session:
        await session.run("open('f', 'w').write('theirs')")
        assert (session._parts.workspace / "f").read_text() == "theirs"
        assert (session._parts.workspace / "f").stat().st_uid not in (0, os.getuid())


@hard
async def test_nothing_of_a_workspace_is_left_after_its_session(coordinator: Coordinator) -> None:
    stock = 2
    async with coordinator.session(limits={"workspace_bytes": 16 * MiB}) as session:
        await session.run("open('f', 'w').write('x')")
        assert devices(coordinator) == 1
        assert (coordinator._workspaces / session.id).is_dir()
    await come_to(0, coordinator)
    async with coordinator.session() as session:
        await session.restart()
        assert 1 <= devices(coordinator) <= 1 + stock
        directory = coordinator._workspaces / session.id
    await come_to(stock, coordinator)
    assert not directory.exists()


@hard
async def test_nothing_is_left_when_the_service_ends() -> None:
    limits = Limits(workspace_bytes=SIZE)
    async with (
        Coordinator(Config(isolation="best", limits=limits)) as coordinator,
        coordinator.session() as session,
    ):
        assert (await session.run("1")).text == "=> 1"
    assert devices(coordinator) == 0


@pytest.mark.parametrize(
    "size", [SIZE + 1, pytest.param(SIZE - 1024, marks=hard, id="with what a file system takes")]
)
async def test_files_that_do_not_fit_are_refused_and_nothing_is_left(
    coordinator: Coordinator, size: int
) -> None:
    with pytest.raises(InvalidInputError, match="do not fit"):
        await coordinator.open(SessionRequest(files={"f": FileContent(text="x" * size)}))
    assert list(coordinator._workspaces.glob("[!.]*")) == []
    assert coordinator.list() == ()
