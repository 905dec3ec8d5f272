from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from replsvc.calls import Draft, Event
from replsvc.errors import StorageError
from replsvc.store import EventLog, SessionRecord


def open_below(directory: Path) -> list[str]:
    """What this process has open in `directory`."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:  # the listing's own
            continue
        if target.is_relative_to(directory):
            found.append(str(target))
    return found


async def refusal(path: Path) -> StorageError:
    """The error that opening `path` raises; nothing in it stays open."""
    with pytest.raises(StorageError) as caught:
        async with EventLog.open(path):
            pytest.fail("it was opened")
    assert open_below(path) == []
    return caught.value


async def everything(log: EventLog) -> list[tuple[Event, ...]]:
    return [await log.read(record.id) for record in await log.sessions()]


def hold_in_another_process(directory: Path) -> subprocess.Popen[bytes]:
    """A process that has a log open there."""
    code = """if True:
        import sys, trio
        from pathlib import Path
        from replsvc.store import EventLog

        async def main():
            async with EventLog.open(Path(sys.argv[1])):
                print("open", flush=True)
                await trio.sleep_forever()

        trio.run(main)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"open\n"
    return holder


def fill(path: Path) -> None:
    """Write to `path` until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A directory in which this user, who is not root, may not write."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    else:
        tmp_path.chmod(0o500)
    yield tmp_path
    if was == 0:
        os.seteuid(was)
    else:
        tmp_path.chmod(0o700)


async def test_the_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "data ?#%20\N{SNAKE}"
    async with EventLog.open(directory) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        assert directory.stat().st_mode & 0o777 == 0o700
        modes = {entry.name: entry.stat().st_mode & 0o777 for entry in directory.iterdir()}
        assert set(modes) == {"replsvc.db", "replsvc.db-wal", "replsvc.db-shm", "replsvc.lock"}
        assert set(modes.values()) == {0o600}
    assert {entry.name for entry in directory.iterdir()} == {"replsvc.db", "replsvc.lock"}
    assert open_below(directory) == []


async def test_without_a_directory_the_log_is_private_and_gone_at_the_end() -> None:
    async with EventLog.open(None) as log, EventLog.open(None) as other:
        directory = log.directory
        assert directory.stat().st_mode & 0o777 == 0o700
        assert other.directory != directory
        await log.create_session(SessionRecord(id="s1", state="open"))
        assert await other.sessions() == ()
    assert not directory.exists()
    assert not other.directory.exists()


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    error = await refusal(path)
    assert str(path) in error.message
    assert error.hint == "Choose a path that is a directory, or none yet."
    assert path.read_text() == "mine"
    assert "directory" in (await refusal(path / "below")).hint


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "replsvc.db"
    path.write_bytes(b"something else entirely " * 100)
    error = await refusal(tmp_path)
    assert error.details == {"sqlite": "SQLITE_NOTADB"}
    assert "backup" in error.hint
    assert path.read_bytes() == b"something else entirely " * 100


async def test_damage_is_reported_when_it_is_met(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path) as log:
        for n in range(2):
            await log.create_session(SessionRecord(id=f"s{n}", state="open"))
            blob = bytes(10_000)
            await log.append(f"s{n}", [Draft(kind="output", blob=blob)] * 20).wait()
    path = tmp_path / "replsvc.db"
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(20, pages):
            file.seek(page * 4096)
            file.write(b"\xa5" * 4096)

    async with EventLog.open(tmp_path) as log:
        with pytest.raises(StorageError) as caught:
            await everything(log)
        assert caught.value.details["sqlite"].startswith("SQLITE_CORRUPT")
        assert "backup" in caught.value.hint


async def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "replsvc.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE photos (name TEXT)")
    theirs.close()
    assert "something else" in (await refusal(tmp_path)).message
    with sqlite3.connect(path) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]
    theirs.close()


async def test_a_directory_has_one_log_at_a_time(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path) as log:
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
            async with EventLog.open(tmp_path):
                pytest.fail("it was opened twice")
        await log.create_session(SessionRecord(id="s1", state="open"))  # the first goes on
    async with EventLog.open(tmp_path) as log:
        assert len(await log.sessions()) == 1


async def test_a_directory_in_use_names_the_process_and_is_free_when_that_is_killed(
    tmp_path: Path,
) -> None:
    holder = hold_in_another_process(tmp_path)
    try:
        error = await refusal(tmp_path)
        assert f"in use by process {holder.pid}" in error.message
        assert error.details == {"pid": holder.pid}
        assert error.hint
    finally:
        holder.kill()
        holder.communicate()
    async with EventLog.open(tmp_path):
        pass


@pytest.mark.needs("mount")
async def test_a_read_only_file_system_is_refused(
    tmp_path: Path, mount: Callable[..., None]
) -> None:
    async with EventLog.open(tmp_path / "data"):
        pass
    (tmp_path / "frozen").mkdir()
    mount("--bind", str(tmp_path / "data"), str(tmp_path / "frozen"))
    mount("-o", "remount,bind,ro", str(tmp_path / "frozen"))

    for path in (tmp_path / "frozen", tmp_path / "frozen" / "below"):
        error = await refusal(path)
        assert "Read-only file system" in error.message
        assert f"writable for uid {os.geteuid()}" in error.hint


async def test_a_directory_without_permission_is_refused(forbidden: Path) -> None:
    with pytest.raises(StorageError, match="Permission denied") as caught:
        async with EventLog.open(forbidden / "data"):
            pytest.fail("it was opened")
    assert f"writable for uid {os.geteuid()}" in caught.value.hint


@pytest.mark.needs("mount")
async def test_a_full_disk_is_refused_and_the_same_directory_works_once_there_is_room(
    tmp_path: Path, mount: Callable[..., None]
) -> None:
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path))
    filler = tmp_path / "filler"
    fill(filler)

    error = await refusal(tmp_path / "data")
    assert str(tmp_path / "data") in error.message
    assert "space" in error.hint

    filler.unlink()
    async with EventLog.open(tmp_path / "data") as log:
        await log.create_session(SessionRecord(id="s1", state="open"))


async def test_a_copy_of_the_directory_opens_as_a_log_of_its_own(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path / "a") as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
        await log.append("s1", [Draft(kind="status")]).wait()
        # As after a crash: the write-ahead log is not yet in the database file.
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        async with EventLog.open(tmp_path / "b") as copy:
            assert await copy.read("s1") == await log.read("s1")
