"""Coordinators with many isolated sessions, killed ones, and those of an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from outside import Held, attempt, below, given, group_file, kernel_pid, start

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.errors import StorageError
from replsvc.session_values import SessionRequest
from replsvc_kernels.backends.fork_server import ForkServer

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")

# Nobody on this machine has this id.
USER = 64_321
BUSY = "import time\nprint('busy', flush=True)\nwhile True: time.sleep(1)"


def config(**settings: object) -> Config:
    settings = {"pool_max": 0, **settings}
    return Config(isolation="best", limits=Limits(interrupt_grace_s=0.5), **settings)


# Many


async def test_two_hundred_sessions_opened_at_once_are_all_there_and_all_limited() -> None:
    pids: set[int] = set()
    async with Coordinator(config()) as coordinator:

        async def one() -> None:
            session = await coordinator.open(SessionRequest())
            assert (await session.run("6 * 7")).text == "=> 42"
            pids.add(kernel_pid(session))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one)
        infos = [await session.info() for session in coordinator.list()]
        assert len({(info.isolation, info.isolation_missing) for info in infos}) == 1
        if coordinator._backends._servers.cgroups is not None:
            limits = [group_file(coordinator, s, "pids.max") for s in coordinator.list()]
            assert limits == ["256"] * 200
        held = Held(pids)
        assert len(held) == 200
    assert held.alive() == []
    held.close()


def namespace_pids(pid: int) -> list[int]:
    """A process's number in each pid namespace that it is in, ours first."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (numbers,) = [line.split()[1:] for line in lines if line.startswith("NSpid:")]
    return [int(number) for number in numbers]


def counted(coordinator: Coordinator, server: int) -> dict[str, object]:
    """All that sessions could leave, here and in their fork server."""
    files = Counter(
        str(path.readlink()).split(":")[0]
        for pid in (os.getpid(), server)
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if path.is_symlink()
    )
    root = coordinator._backends._servers.cgroups
    return {
        "descriptors": dict(files),
        "mounts": {
            pid: len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
            for pid in (os.getpid(), server)
        },
        "groups": [path for one in (root.paths if root else ()) for path in Path(one).glob("*/")],
        "processes": sorted(below(os.getpid())),
        "threads": len(list(Path(f"/proc/{server}/task").iterdir())),
        "directories": sorted(coordinator._workspaces.iterdir()),
    }


def server_of(coordinator: Coordinator) -> ForkServer:
    """The one that there is."""
    (backend,) = coordinator._backends._servers._backends.values()
    return backend._server


async def comes_to(before: dict[str, object], coordinator: Coordinator, server: int) -> None:
    """Libzmq closes its descriptors in a thread of its own, and tells nobody."""
    with trio.move_on_after(20):
        while counted(coordinator, server) != before:
            await trio.lowlevel.checkpoint()
    assert counted(coordinator, server) == before


async def test_thirty_sessions_one_after_the_other_leave_nothing() -> None:
    async with Coordinator(config()) as coordinator:
        for _ in range(2):
            async with coordinator.session() as session:
                await session.run("import subprocess; subprocess.Popen(['sleep', '1000']); None")
        server = server_of(coordinator)
        assert server.pid is not None
        before = counted(coordinator, server.pid)
        assert before["directories"] == []
        for _ in range(30):
            async with coordinator.session() as session:
                await session.run("import subprocess; subprocess.Popen(['sleep', '1000']); None")
        await comes_to(before, coordinator, server.pid)


async def test_starts_that_are_cancelled_at_any_moment_leave_nothing() -> None:
    async with Coordinator(config()) as coordinator:
        async with coordinator.session() as session:
            await session.run("1")
        server = server_of(coordinator)
        assert server.pid is not None
        before = counted(coordinator, server.pid)

        async def one(after_s: float) -> None:
            with trio.move_on_after(after_s):
                async with coordinator.session() as session:
                    await session.run("1")

        for _ in range(4):
            async with trio.open_nursery() as nursery:
                for step in range(10):
                    nursery.start_soon(one, step * 0.02)
        assert coordinator.list() == ()
        await comes_to(before, coordinator, server.pid)


async def test_a_session_whose_start_can_not_be_recorded_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Coordinator(config()) as coordinator:

        async def fail(*_: object, **__: object) -> None:
            raise StorageError("the disk is full", hint="")

        async with coordinator.session():
            before = len(below(os.getpid()))
            with monkeypatch.context() as patch:
                patch.setattr(coordinator.log, "update_session", fail)
                with pytest.raises(StorageError):
                    await coordinator.open(SessionRequest())
            assert len(below(os.getpid())) == before
            assert len(list(coordinator._workspaces.iterdir())) == 1


# Killed


async def test_a_session_whose_init_is_killed_says_so_and_restarts() -> None:
    async with Coordinator(config()) as coordinator, coordinator.session(**given()) as session:
        running = await start(session, BUSY, b"busy")
        kernel = kernel_pid(session)
        namespace = Path(f"/proc/{kernel}/ns/pid").readlink()
        (init,) = [
            pid
            for pid in below(os.getpid())
            if Path(f"/proc/{pid}/ns/pid").readlink() == namespace and pid != kernel
        ]
        os.kill(init, signal.SIGKILL)
        call = await running.wait()
        assert (call.status, call.state_lost) == ("killed", True)
        assert call.cause is not None
        assert (call.cause.kind, call.cause.signal) == ("signal", signal.SIGKILL)
        assert call.output.text == "busy\n"
        assert (await attempt(session, "prove"))["pid"] == 2


async def test_a_session_goes_on_when_the_fork_server_is_killed() -> None:
    async with Coordinator(config()) as coordinator:
        async with coordinator.session() as session, coordinator.session() as other:
            await session.run("x = 5")
            running = await start(session, BUSY, b"busy")
            server = server_of(coordinator)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            async with coordinator.session() as next_one:
                assert (await next_one.run("6 * 7")).text == "=> 42"
            assert (await session.interrupt()).delivered
            assert (await running.wait()).status == "interrupted"
            assert (await session.run("x")).text == "=> 5"
            await other.restart()
            assert (await other.run("6 * 7")).text == "=> 42"
        for _ in range(3):
            os.kill(server.pid, signal.SIGKILL)
            async with coordinator.session() as session:
                assert (await session.run("6 * 7")).text == "=> 42"


async def test_a_killed_keeper_ends_the_kernels_below_it_and_each_session_starts_anew() -> None:
    async with Coordinator(config()) as coordinator:
        async with coordinator.session(**given()) as session, coordinator.session() as other:
            running = await start(session, BUSY, b"busy")
            await other.run("x = 5")
            server = server_of(coordinator)
            assert server.pid is not None
            held = Held([server.pid, kernel_pid(session), kernel_pid(other)])
            # Pid 1 of the namespace that the server and all kernels are born in.
            (keeper,) = [
                pid
                for pid in below(os.getpid())
                if namespace_pids(pid)[1:] == [1] and pid != server.pid
            ]
            os.kill(keeper, signal.SIGKILL)
            call = await running.wait()
            assert (call.status, call.state_lost) == ("killed", True)
            assert call.output.text == "busy\n"
            await trio.to_thread.run_sync(held.wait_gone)
            assert (await attempt(session, "prove"))["pid"] == 2
            assert (await other.run("'x' in globals()")).text == "=> False"
        held.close()
        assert len(below(os.getpid())) == 3  # the next server, its keeper, the parent of both
        assert list(coordinator._workspaces.iterdir()) == []


HOST = """
import json, os, sys, trio
sys.path[:0] = sys.argv[2], os.path.dirname(sys.argv[2])
from outside import attempt, given, groups
from replsvc.config import Config
from replsvc.coordinator import Coordinator

async def main():
    config = Config(isolation="best", data=sys.argv[1], pool_min=2)
    async with Coordinator(config) as c, c.session(**given()) as s, c.session():
        await attempt(s, "linger")
        found = {
            "groups": [str(path) for path in groups(c, s)] if c._backends._servers.cgroups else [],
            "runtime": str(c._runtime),
            "workspace": str(c._workspaces / s.id),
            "session": s.id,
        }
        print(json.dumps(found), flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_of_a_killed_coordinator_nothing_is_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-c", HOST, str(data), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        try:
            assert host.stdout is not None
            found = json.loads(await trio.to_thread.run_sync(host.stdout.readline))
            held = Held(below(host.pid))
            # Parent, keeper, server; init and kernel of each session, and what lingers.
            assert len(held) >= 8
        finally:
            host.kill()
    await trio.to_thread.run_sync(held.wait_gone)
    held.close()
    assert Path(found["runtime"]).exists()
    async with Coordinator(config(data=data)) as coordinator:
        records = {record.id: record for record in await coordinator.log.sessions()}
        assert records[found["session"]].state == "stopped"
        async with coordinator.session() as session:
            assert (await session.run("6 * 7")).text == "=> 42"
        for left in (found["runtime"], found["workspace"], *found["groups"]):
            assert not Path(left).exists(), left
        assert not any(Path(path).parent.exists() for path in found["groups"])
        assert list(coordinator._workspaces.iterdir()) == []


# An ordinary user's

UNPRIVILEGED = """
import json, os, sys, trio
sys.path[:0] = sys.argv[1], os.path.dirname(sys.argv[1])
from outside import attempt, given, kernel_pid
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import IsolationUnavailableError

async def main():
    async with Coordinator(Config(isolation="best", pool_max=0)) as c:
        async with c.session(**given()) as one, c.session(**given()) as other:
            info = await one.info()
            found = {
                "uid": os.getuid(),
                "isolation": info.isolation,
                "missing": info.isolation_missing,
                "value": (await one.run("6 * 7")).text,
                "proof": await attempt(one, "prove"),
                "neighbour": await attempt(one, "against_process", kernel_pid(other)),
                "init": await attempt(one, "against_process", 1),
                "host": await attempt(one, "against_process", os.getpid()),
                "writable": await attempt(one, "writable"),
                "read": await attempt(one, "read", str(other._parts.workspace / "attempts.py")),
                "network": await attempt(one, "network"),
                "files": await attempt(one, "open_many"),
                "still": (await one.run("6 * 7")).text,
            }
        try:
            async with c.session(isolation="required"):
                pass
        except IsolationUnavailableError as error:
            found["required"] = str(error)
        found["left"] = [str(path) for path in c._workspaces.iterdir()]
    print(json.dumps(found))

trio.run(main)
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of the user's own, where everybody can go."""
    path = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    try:
        path.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(path, USER, USER)
        yield path
    finally:
        shutil.rmtree(path)


def test_an_ordinary_user_gets_isolation_and_hears_what_is_missing(home: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", UNPRIVILEGED, str(here)]
    if os.geteuid() == 0:
        command = [sys.executable, str(here / "as_user.py"), "--home", str(home), *command]
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(home),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == (USER if os.geteuid() == 0 else os.getuid())
    assert found["isolation"] == "partial"
    assert any(one.startswith("a user id for each session (") for one in found["missing"])
    assert found["value"] == found["still"] == "=> 42"
    assert found["proof"]["uid outside"] == found["uid"]
    for who in ("neighbour", "host"):
        assert set(found[who].values()) == {"ENOENT", "ESRCH", "EPERM"}
        assert (found[who]["signal"], found[who]["environ"]) == ("ESRCH", "ENOENT")
    assert found["init"]["environ"] in ("ENOENT", "EACCES")
    assert found["init"]["ptrace"] == "EPERM"
    # Below its own /tmp are the places of an environment that lies in ours.
    writable = {one for one in found["writable"] if not one.startswith("/session/tmp/")}
    assert writable == {"/dev/shm", "/session/tmp", "/session/work"}
    assert found["read"] == "ENOENT"
    assert found["network"]["interfaces"] == ["lo"]
    assert found["network"]["tcp"] == "ENETUNREACH"
    assert found["files"][0] == "EMFILE"
    assert "a user id for each session" in found["required"]
    assert found["left"] == []
    assert list(home.glob("replsvc-*")) == []


@pytest.mark.needs("root", "setpriv")
def test_root_who_may_not_mount_as_in_a_container_isolates_all_the_same(tmp_path: Path) -> None:
    here = Path(__file__).parent
    command = ["setpriv", "--bounding-set=-sys_admin", sys.executable, "-c", UNPRIVILEGED, here]
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == 0
    assert found["proof"]["uid outside"] > 1_000_000
    assert not any("user id" in layer for layer in found["missing"])
    assert found["value"] == found["still"] == "=> 42"
    for who in ("neighbour", "host"):
        assert (found[who]["signal"], found[who]["environ"]) == ("ESRCH", "ENOENT")
    assert (found["init"]["environ"], found["read"]) == ("ENOENT", "ENOENT")
    assert found["left"] == []
