"""A data directory that gets full while sessions run: a fault of the service, and it heals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import StorageError

pytestmark = pytest.mark.needs("mount")
LOUD = "print('o' * 3_000_000)"


@pytest.fixture
def disk(tmp_path: Path, mount: Callable[..., None]) -> Path:
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path))
    return tmp_path


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def test_a_call_fails_as_the_services_fault_and_the_session_goes_on_once_there_is_room(
    disk: Path, make_config: Callable[..., Config]
) -> None:
    config = make_config().model_copy(update={"data": disk / "data"})
    async with Coordinator(config) as coordinator, coordinator.session() as session:
        first = await session.run("x = 41", id="first")
        fill(disk / "filler")
        for _ in range(2):
            with pytest.raises(StorageError) as caught:
                await session.run(LOUD)
            assert (caught.value.code, caught.value.http_status) == ("storage_unavailable", 507)
            assert str(disk / "data") in caught.value.message
        assert session.state == "idle"
        assert await session.find("first") == first
        (disk / "filler").unlink()
        assert (await session.run("x + 1")).text == "=> 42"
        assert (await session.run(LOUD)).output.total_bytes == 3_000_001


async def test_a_session_that_can_not_be_recorded_is_not_opened_and_leaves_nothing(
    disk: Path, make_config: Callable[..., Config]
) -> None:
    config = make_config().model_copy(update={"data": disk / "data"})
    async with Coordinator(config) as coordinator:
        fill(disk / "filler")
        with pytest.raises(StorageError):
            async with coordinator.session(id="a", files={"f": {"text": "x" * 1_000_000}}):
                pass
        assert coordinator.list() == ()
        assert not (disk / "data" / "workspaces" / "a").exists()
        (disk / "filler").unlink()
        async with coordinator.session(id="a") as session:
            assert (await session.run("1")).text == "=> 1"


async def test_a_session_can_be_closed_while_the_disk_is_full(
    disk: Path, make_config: Callable[..., Config]
) -> None:
    config = make_config().model_copy(update={"data": disk / "data"})
    async with Coordinator(config) as coordinator:
        async with coordinator.session() as session:
            fill(disk / "filler")
        assert coordinator.list() == ()
        assert not (coordinator._workspaces / session.id).exists()


async def test_a_question_that_can_not_be_recorded_is_not_waited_for(
    disk: Path, make_config: Callable[..., Config]
) -> None:
    config = make_config().model_copy(update={"data": disk / "data"})
    async with Coordinator(config) as coordinator, coordinator.session() as session:
        await session.run("x = 41")
        fill(disk / "filler")
        with pytest.raises(StorageError), trio.fail_after(60):
            await session.run(f"{LOUD}\ninput()", stdin=True)
        assert session.inputs() == ()
        (disk / "filler").unlink()
        assert (await session.run("x + 1")).text == "=> 42"
