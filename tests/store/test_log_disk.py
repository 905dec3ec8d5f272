"""What a full disk does to a log that is open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from replsvc.calls import Draft
from replsvc.errors import StorageError
from replsvc.store import EventLog, SessionRecord

pytestmark = pytest.mark.needs("mount")
MiB = 1024 * 1024


def fill(path: Path, *, leave: int = 0) -> None:
    """Write to `path` until the disk is full, but for `leave` bytes."""
    with path.open("wb", buffering=0) as file:
        size = 0
        try:
            while True:
                size += file.write(bytes(4096))
        except OSError:
            file.truncate(size - leave)


def output(size: int) -> list[Draft]:
    return [Draft(kind="output", call_id="c", blob=bytes(size))]


@pytest.fixture
def disk(tmp_path: Path, mount: Callable[..., None]) -> Path:
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path))
    return tmp_path


async def test_a_full_disk_fails_appends_keeps_what_was_acknowledged_and_heals(
    disk: Path,
) -> None:
    async with EventLog.open(disk / "data") as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        await log.append("s1", output(100)).wait()
        follower = log.follow("s1")
        seen = [event.seq for event in await anext(follower)]
        fill(disk / "filler")

        acknowledged = 1
        for _ in range(20):
            pending = log.append("s1", output(MiB))
            with pytest.raises(StorageError) as caught:
                await pending.wait()
            assert str(disk / "data") in caught.value.message
            assert caught.value.hint == "Free space there; the log goes on by itself."
            assert caught.value.details == {"sqlite": "SQLITE_FULL"}
        assert [event.seq for event in await log.read("s1")] == [1]
        assert (await log.feed("s1")).last_seq == 1
        assert log.pending_bytes == 0

        (disk / "filler").unlink()
        for _ in range(3):
            acknowledged += 1
            assert (await log.append("s1", output(MiB)).wait())[0].seq == acknowledged
        while seen[-1] < acknowledged:
            seen += [event.seq for event in await anext(follower)]
        assert seen == [1, 2, 3, 4]

    async with EventLog.open(disk / "data") as log:
        assert [event.seq for event in await log.read("s1")] == [1, 2, 3, 4]


async def test_what_does_not_fit_fails_alone_in_its_batch(
    disk: Path, hold_writer: Callable[[Path], AbstractContextManager[None]]
) -> None:
    async with EventLog.open(disk / "data") as log:
        for n in range(4):
            await log.create_session(SessionRecord(id=f"s{n}", state="open"))
        fill(disk / "filler", leave=256 * 1024)

        with hold_writer(disk / "data"):
            log.append("s0", output(10))  # the batch that the writer waits with
            large = log.append("s1", output(MiB))
            small = [log.append(f"s{n}", output(10)) for n in range(4) for _ in range(2)]

        with pytest.raises(StorageError):
            await large.wait()
        numbers = [(await pending.wait())[0].seq for pending in small]
        assert numbers == [2, 3, 1, 2, 1, 2, 1, 2]
        assert len(await log.read("s0")) == 3


async def test_a_session_that_could_not_be_created_can_be_once_there_is_room(disk: Path) -> None:
    record = SessionRecord(id="s1", state="open", spec={"large": "x" * MiB})
    async with EventLog.open(disk / "data") as log:
        fill(disk / "filler")
        with pytest.raises(StorageError):
            await log.create_session(record)
        assert await log.sessions() == ()  # reading goes on
        (disk / "filler").unlink()
        assert await log.create_session(record) == record
