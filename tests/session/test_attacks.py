"""Sessions that exhaust, plant and signal whatever they can, with the service watched meanwhile.

security.md 1, 7, 8, beside test_isolation.py. Nothing is tried unless attempts.py has proved that
this is a sandbox.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from outside import (
    answers,
    attack,
    attempt,
    cell,
    given,
    group_file,
    limited,
    members,
    start,
    watched,
)

import replsvc_kernels
from patience import promptly
from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import InvalidInputError
from replsvc.session import Session
from replsvc.session_values import Mount

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")

MiB = 1 << 20
TEMPORARY = ("/tmp/", "/var/tmp/")


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Coordinator]:
    config = Config(isolation="best", data=tmp_path / "data", limits=Limits(interrupt_grace_s=0.5))
    async with Coordinator(config) as coordinator:
        yield coordinator


# Against a neighbour


async def test_a_kill_of_everybody_reaches_its_own_processes_only(
    offender: Session, neighbour: Session
) -> None:
    assert await attack(offender, "kill_everybody") == 3
    await answers(offender)
    await answers(neighbour)


async def test_shared_memory_and_queues_of_a_neighbour_are_not_there(
    offender: Session, neighbour: Session
) -> None:
    await attack(neighbour, "share_memory")
    assert await attack(neighbour, "shared_memory") == "done"
    assert await attack(offender, "shared_memory") == "ENOENT"
    # Landlock knows them as files in no directory that may be written.
    assert await attack(neighbour, "message_queue", True) in ("done", "EACCES")
    assert await attack(offender, "message_queue", False) in ("ENOENT", "EACCES")


async def test_no_descriptor_and_no_way_upwards_leads_out(offender: Session) -> None:
    found = await attack(offender, "descriptors")
    assert len(found) > 3
    assert [one for one in found.values() if one[1]] == []
    kinds = {target.split(":")[0] for target, _ in found.values()}
    assert kinds <= {"pipe", "socket", "anon_inode", "/dev/null", "/dev/urandom", "/proc/self/fd"}
    found = await attack(offender, "upwards")
    assert found.pop("top") is True
    assert set(found.values()) <= {"ENOENT", "EACCES"}, found


async def test_there_is_no_connection_file_to_be_found(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    there = list(coordinator._runtime.rglob("*.json"))
    there += list(coordinator._workspaces.rglob("*.json"))
    assert there == []
    call = await offender.run("import ipykernel; ipykernel.get_connection_file()")
    assert call.status == "error"


async def test_priorities_and_locked_memory_can_not_be_had(offender: Session) -> None:
    found = await attack(offender, "priorities")
    assert found == {
        "nice": "EACCES",
        "fifo": "EPERM",
        "deadline": found["deadline"],
        "oom": "EROFS",
        "io": "EPERM",
        "locked": "ENOMEM",
    }
    assert found["deadline"] in ("EPERM", "EINVAL", "E2BIG")


# Exhaustion: only the offender is refused, and the service goes on telling


async def test_descriptors_without_an_end_are_refused_to_the_offender_alone(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    async with watched(coordinator, neighbour):
        said, most = await attempt(offender, "open_many")
        assert (said, most) == ("EMFILE", 1024)
        said, pipes = await attack(offender, "pipes", 1_000_000)
        assert said in ("EMFILE", "ENFILE")
        assert pipes <= 1024
        counts = await attack(offender, "files_of_many_processes", 60)
    assert len(counts) == 60
    assert sum(counts) > 50_000
    assert max(counts) < 1024
    await answers(neighbour)


async def test_descriptors_in_flight_are_refused_to_the_offender_alone(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    async with watched(coordinator, neighbour):
        said, count = await attack(offender, "descriptors_in_flight")
        assert said in ("ETOOMANYREFS", "EMFILE")
        assert count >= 200
    async with coordinator.session() as third:
        await answers(third)


async def test_queued_signals_are_refused_to_the_offender_alone(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    async with watched(coordinator, neighbour):
        said, count = await attack(offender, "timers", 1_000_000)
    assert said == "EAGAIN"
    assert count <= 4096


@pytest.mark.needs("cgroups")
async def test_a_million_threads_are_an_error_in_the_cell(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    assert group_file(coordinator, offender, "pids.max") == "256"
    async with watched(coordinator, neighbour):
        said, count = await attempt(offender, "start_threads", 1_000_000)
    assert said == "can't start new thread"
    assert 100 < count < 256
    await answers(offender)


@pytest.mark.needs("cgroups")
async def test_a_full_process_table_keeps_nobody_from_restarting_and_closing(
    coordinator: Coordinator, neighbour: Session
) -> None:
    async with limited(coordinator, processes=48) as session:
        await attempt(session, "prove")
        if group_file(coordinator, session, "pids.max") != "48":
            pytest.fail("not tried: the number of processes is not limited")
        code = "import attempts, signal\nattempts.fork_bomb()\nprint('full')\nsignal.pause()"
        async with watched(coordinator, neighbour):
            bombed = await start(session, code, b"full\n")
            held = members(coordinator, session)
            assert len(held) > 20
            await session.restart()
            assert held.alive() == []
            assert (await bombed.wait()).status == "killed"
            await answers(session)
            bombed = await start(session, code, b"full\n")
            held.close()
            held = members(coordinator, session)
    assert held.alive() == []
    held.close()
    assert (await bombed.wait()).status == "killed"


async def test_busy_loops_leave_the_neighbour_its_share(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    async with watched(coordinator, neighbour):
        await attack(offender, "spin", 8)
    await answers(neighbour)
    with promptly():
        assert not (await offender.interrupt()).delivered


async def test_a_flood_of_output_is_interrupted_and_the_service_answers_meanwhile(
    coordinator: Coordinator, neighbour: Session
) -> None:
    async with limited(coordinator) as session:
        await session.run("kept = 1")
        async with watched(coordinator, neighbour):
            run = await start(session, "import attacks\nattacks.flood()", b"xxxx")
        async with watched(coordinator, neighbour):
            with promptly():
                assert (await session.interrupt()).delivered
            call = await run.wait()
        assert (call.status, call.state_lost) == ("interrupted", False)
        assert (await session.run("kept")).text == "=> 1"


# Memory


@pytest.fixture
def swap() -> Iterator[None]:
    """A machine without swap gets some for the test."""
    with tempfile.NamedTemporaryFile(prefix="replsvc-test-", dir="/var/tmp") as file:
        os.posix_fallocate(file.fileno(), 0, 512 * MiB)
        for command in ("mkswap", "swapon"):
            done = subprocess.run([command, file.name], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no swap can be added: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["swapoff", file.name], check=True)


HOG = "print('begun')\nx = bytearray()\nwhile True: x += bytes(1 << 20)"
FILES = "print('begun')\nimport attacks\nattacks.fill_memory_files(4 << 30)"


@pytest.mark.needs("root", "cgroups")
@pytest.mark.usefixtures("swap")
@pytest.mark.parametrize("code", [HOG, FILES], ids=["heap", "files in memory"])
async def test_memory_past_the_limit_does_not_go_to_swap(
    coordinator: Coordinator, neighbour: Session, code: str
) -> None:
    assert len(Path("/proc/swaps").read_text().splitlines()) > 1
    async with limited(coordinator, memory_bytes=128 * MiB) as session:
        await attempt(session, "prove")
        async with watched(coordinator, neighbour):
            call = await session.run(code)
        assert call.cause is not None
        assert (call.status, call.cause.kind, call.cause.limit) == ("killed", "oom", 128 * MiB)
        assert call.cause.peak is not None
        assert call.cause.peak <= 128 * MiB
        assert call.text.startswith("begun\n")
        await answers(session)


# What the coordinator must not run, and nobody may change

# Each would say so in a file that only the host has a place for.
PLANTED = "open({mark!r}, 'a').write('{name} ran')\n"
HOOKS = (
    "sitecustomize.py",
    "usercustomize.py",
    "conftest.py",
    "replsvc.py",
    "json.py",
    "trio.py",
    "setup.py",
    "replsvc_kernels/__init__.py",
    ".ipython/profile_default/startup/00.py",
    ".ipython/profile_default/ipython_config.py",
    ".jupyter/jupyter_config.py",
    ".local/lib/python3.11/site-packages/planted.pth",
    ".pythonrc.py",
)


async def test_nothing_that_is_planted_in_a_workspace_runs_on_the_host(
    coordinator: Coordinator, neighbour: Session, tmp_path: Path
) -> None:
    mark = str(tmp_path / "ran")
    files = {name: {"text": PLANTED.format(mark=mark, name=name)} for name in HOOKS}
    files[".local/lib/python3.11/site-packages/planted.pth"] = {
        "text": f"import sys; open({mark!r}, 'a').write('pth ran')\n"
    }
    for hook in ("post-checkout", "fsmonitor-watchman", "pre-commit"):
        files[f".git/hooks/{hook}"] = {"text": f"#!/bin/sh\necho {hook} >> {mark}\n"}
    files[".git/config"] = {"text": f"[core]\n\tfsmonitor = echo fsmonitor >> {mark}\n"}
    files["replsvc.toml"] = {"text": "isolation = 'none'\n"}
    async with coordinator.session(files=files) as session:
        assert (await session.run("6 * 7")).text == "=> 42"
        # The mark is no place that the session could write to itself.
        call = await session.run(f"open({mark!r}, 'w')")
        assert call.error is not None
        assert call.error.ename == "FileNotFoundError"
        await session.run("import os; os.chmod('.git/hooks/post-checkout', 0o777)")
        await session.restart()
        assert (await session.info()).isolation != "none"
        await session.reset()
        assert (await session.run("6 * 7")).text == "=> 42"
    async with coordinator.session():
        pass
    assert not Path(mark).exists()
    loaded = [str(getattr(module, "__file__", None)) for module in sys.modules.values()]
    assert [path for path in loaded if path.startswith(str(coordinator._workspaces))] == []


async def test_policy_and_environment_can_not_be_written_and_nothing_put_beside_them(
    coordinator: Coordinator, offender: Session, neighbour: Session, tmp_path: Path
) -> None:
    kernels = Path(str(replsvc_kernels.__file__)).parent
    policy = ["_seccomp_policy.py", "rlimits.py", "landlock.py"]
    there = [str(kernels / "sandbox" / name) for name in policy]
    there += [str(kernels / "forkserver" / "child.py"), str(kernels / "guest" / "app.py")]
    found = await attempt(offender, "written", [*there, sys.executable])
    assert set(found.values()) <= {"EROFS", "EACCES", "ETXTBSY"}, found
    packages = Path(pytest.__file__).parent.parent
    planted = [
        str(kernels / "guest" / "sitecustomize.py"),
        str(packages / "planted.pth"),
        str(packages / "sitecustomize.py"),
        f"{sys.base_prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/planted.py",
        str(Path.cwd() / "replsvc.toml"),
        str(Path.home() / ".config" / "replsvc" / "replsvc.toml"),
        str(Path.home() / ".ssh" / "authorized_keys"),
        str(tmp_path / "data" / "planted"),
        str(coordinator._workspaces / "planted" / "work"),
        str(neighbour._parts.workspace / "planted"),
        "/etc/cron.d/planted",
        "/etc/ld.so.preload",
        "/etc/resolv.conf",
        "/usr/local/bin/python3",
        "/root/planted",
        "/run/planted",
        "/session/etc/planted",
        "/session/all/planted",
        "/sys/fs/cgroup/planted/cgroup.procs",
        "/proc/planted",
        "/planted",
    ]
    not_there = [path for path in planted if not os.path.lexists(path)]
    assert len(not_there) > 12
    found = await attack(offender, "made", not_there)
    # Whatever lies in /tmp is in a /tmp of its own.
    refused = {path: said for path, said in found.items() if not path.startswith(TEMPORARY)}
    # The last two where a session finds a file on the way, and the machine has a directory.
    errors = ("EROFS", "EACCES", "ENOENT", "EPERM", "EEXIST", "ENOTDIR")
    assert {path: said for path, said in refused.items() if said not in errors} == {}
    assert len(refused) > 8
    assert [path for path in not_there if os.path.lexists(path)] == []


async def test_what_the_host_makes_later_where_it_was_denied_is_not_seen(
    coordinator: Coordinator, offender: Session, neighbour: Session, tmp_path: Path
) -> None:
    later = [tmp_path / "later", coordinator._runtime / "later", coordinator._workspaces / "later"]
    paths = [str(path) for path in later]
    await attack(offender, "made", paths)
    assert [path for path in paths if os.path.lexists(path)] == []
    for path in later:
        path.write_text("the host's")
    try:
        for path in paths:
            call = await offender.run(f"open({path!r}).read()")
            assert "the host's" not in call.text
        assert await attempt(neighbour, "find", ["later"]) == []
    finally:
        for path in later:
            path.unlink()


async def test_its_directories_can_not_be_moved_and_no_device_or_right_be_made(
    offender: Session, neighbour: Session
) -> None:
    places = ["/session/work", "/session/run", "/session/tmp", "/session", "/dev/shm", "/usr"]
    found = await attack(offender, "moved", places)
    assert found.pop("setuid") == "done"  # it is a program like any other
    assert found.pop("link") in ("EXDEV", "EPERM")
    assert found.pop("device") == "EPERM"
    assert set(found.values()) <= {"EROFS", "EBUSY", "EACCES", "EPERM", "EXDEV"}, found


@pytest.mark.parametrize("place", ["data", "data/workspaces", "."])
async def test_what_is_the_services_own_can_not_be_mounted(
    coordinator: Coordinator, neighbour: Session, tmp_path: Path, place: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / place)
    for source in (tmp_path / place, tmp_path / "link"):
        with pytest.raises(InvalidInputError, match="the service's own directory"):
            async with coordinator.session(mounts=[Mount.parse(f"{source}:there:rw")]):
                pass
    assert coordinator.list() == (coordinator.get(neighbour.id),)


# Together


async def test_all_attacks_at_once_from_many_sessions_leave_a_service_that_answers(
    coordinator: Coordinator, neighbour: Session
) -> None:
    tries = [
        cell("open_many"),
        cell("start_threads", 5_000),
        cell("fill", "/dev/shm"),
        cell("pipes", 5_000, module="attacks"),
        cell("descriptors_in_flight", module="attacks"),
        cell("kill_everybody", module="attacks"),
        cell("timers", 5_000, module="attacks"),
    ]

    async def one(code: str) -> None:
        async with coordinator.session(**given(), limits={"processes": 64}) as session:
            await attempt(session, "prove")
            call = await session.run(code, timeout_s=60)
            assert call.status in ("ok", "killed"), call.text

    async with watched(coordinator, neighbour), trio.open_nursery() as nursery:
        for code in tries:
            nursery.start_soon(one, code)
    assert [session.id for session in coordinator.list()] == [neighbour.id]
    assert [path.name for path in coordinator._workspaces.glob("[!.]*")] == [neighbour.id]
