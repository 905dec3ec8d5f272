"""What isolated sessions can't do, tried from inside of them with a neighbour watched.

security.md 1, 7, 8 and execution.md 25-28. Nothing is tried unless attempts.py proved the sandbox.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from outside import (
    answers,
    attempt,
    given,
    group_file,
    groups,
    kernel_pid,
    limited,
    members,
    start,
)

from patience import promptly
from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.session import Session
from replsvc.session_values import Mount
from replsvc_kernels.backends import guest_kernel
from replsvc_kernels.sandbox import _syscalls

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")

MiB = 1 << 20
SECRET = "c5b1-of-the-coordinator"
# The last where a session finds a file on the way, and the machine has a directory.
UNREACHABLE = ("ENOENT", "EACCES", "ENOTDIR")
DENIED = (
    "add_key", "bpf", "chroot", "fanotify_init", "fsmount", "fsopen", "init_module", "io_setup",
    "io_uring_enter", "io_uring_setup", "kcmp", "keyctl", "kexec_load", "mount", "mount_setattr",
    "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open",
    "pidfd_getfd", "pivot_root", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl",
    "reboot", "request_key", "seccomp", "setns", "swapoff", "swapon", "syslog", "umount2",
    "unshare", "userfaultfd",
)  # fmt: skip


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that kernels are given from now on."""
    given_out: list[str] = []
    make = guest_kernel.secrets.token_hex

    def token_hex(size: int) -> str:
        given_out.append(make(size))
        return given_out[-1]

    monkeypatch.setattr(guest_kernel.secrets, "token_hex", token_hex)
    return given_out


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Coordinator]:
    monkeypatch.setenv("SECRET_OF_THE_COORDINATOR", SECRET)
    config = Config(isolation="best", limits=Limits(interrupt_grace_s=0.5))
    async with Coordinator(config) as coordinator:
        yield coordinator


async def test_outside_of_a_sandbox_nothing_is_tried() -> None:
    config = Config(isolation="none")
    async with Coordinator(config) as coordinator, coordinator.session(**given()) as session:
        call = await session.run("import attempts\nprint('went on')")
        assert call.status == "error"
        assert call.error is not None
        assert call.error.ename == "NotTried"
        assert call.error.evalue.startswith("not tried: this is no sandbox")


async def test_a_session_is_a_sandbox(offender: Session) -> None:
    facts = await attempt(offender, "prove")
    assert facts["pid"] == 2
    assert facts["pids"] == 1  # init, which is not the session's, is hidden
    assert facts["uid outside"] not in (0, os.getuid() if os.geteuid() == 0 else -1)


@pytest.mark.needs("root", "cgroups", "landlock")
async def test_with_every_layer_it_is_called_full(offender: Session) -> None:
    info = await offender.info()
    assert (info.isolation, info.isolation_missing) == ("full", ())


async def test_each_session_has_a_user_of_its_own(offender: Session, neighbour: Session) -> None:
    one, other = [(await attempt(s, "prove"))["uid outside"] for s in (offender, neighbour)]
    missing = (await offender.info()).isolation_missing
    if any(layer.startswith("a user id for each session") for layer in missing):
        assert one == other == os.getuid() != 0
    else:
        assert len({one, other, os.getuid()}) == 3


# A neighbour's, and the host's


async def test_a_neighbours_processes_are_out_of_reach(
    offender: Session, neighbour: Session
) -> None:
    for pid in (kernel_pid(neighbour), os.getpid(), os.getppid()):
        found = await attempt(offender, "against_process", pid)
        files = {"environ", "mem", "maps", "cmdline", "status", "root", "fd", "cwd", "ns"}
        assert {name: found.pop(name) for name in files} == dict.fromkeys(files, "ENOENT")
        assert found.pop("ptrace") == "EPERM"
        assert set(found.values()) == {"ESRCH"}, found


async def test_its_own_init_can_be_neither_seen_nor_ended(offender: Session) -> None:
    found = await attempt(offender, "against_process", 1)
    assert (found["environ"], found["root"], found["ptrace"]) == ("ENOENT", "ENOENT", "EPERM")
    await answers(offender)


async def test_a_neighbours_sockets_are_out_of_reach(
    offender: Session, neighbour: Session, coordinator: Coordinator
) -> None:
    port = await attempt(neighbour, "listen", "theirs")
    for own in ("\0theirs", "theirs", ["127.0.0.1", port]):
        assert await attempt(neighbour, "connect", own) == "done"
    assert await attempt(offender, "connect", "\0theirs") == "ECONNREFUSED"
    assert await attempt(offender, "connect", ["127.0.0.1", port]) == "ECONNREFUSED"
    path = neighbour._parts.workspace / "theirs"
    assert path.is_socket()
    assert await attempt(offender, "connect", str(path)) in UNREACHABLE


async def test_the_sockets_of_a_kernel_are_in_no_directory_once_it_runs(
    coordinator: Coordinator, offender: Session
) -> None:
    # Not even its own: they are known by nothing but the connections that they have.
    assert [path for path in coordinator._workspaces.rglob("*") if path.is_socket()] == []
    assert list((coordinator._workspaces / offender.id).rglob("run")) == []
    for action in ("open('/session/run/x', 'w')", "import os; os.mkdir('/session/run/x')"):
        call = await offender.run(action)
        assert call.error is not None
        assert call.error.ename == "FileNotFoundError"
    await offender.restart()
    await answers(offender)


async def test_the_hosts_listeners_are_out_of_reach(offender: Session, tmp_path: Path) -> None:
    name = f"replsvc-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as file,
    ):
        abstract.bind(f"\0{name}")
        file.bind(str(tmp_path / "s"))
        for one in (abstract, file):
            one.listen()
        for address in (f"\0{name}", str(tmp_path / "s")):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(address)  # they are there
        assert await attempt(offender, "connect", list(tcp.getsockname())) == "ECONNREFUSED"
        assert await attempt(offender, "connect", f"\0{name}") == "ECONNREFUSED"
        assert await attempt(offender, "connect", str(tmp_path / "s")) == "ENOENT"
        assert select.select([tcp], [], [], 0)[0] == []


async def test_there_is_no_network_but_loopback(offender: Session) -> None:
    assert await attempt(offender, "network") == {
        "interfaces": ["lo"],
        "resolve": "ENOENT",
        "tcp": "ENETUNREACH",
        "metadata": "ENETUNREACH",
        "udp": "ENETUNREACH",
        "raw": "EPERM",
        "packet": "EAFNOSUPPORT",
        "vsock": "EAFNOSUPPORT",
        "alg": "EAFNOSUPPORT",
    }


async def test_a_neighbours_files_can_not_be_found(offender: Session, neighbour: Session) -> None:
    await attempt(neighbour, "leave_marks", "mark-of-a-neighbour")
    assert len(await attempt(neighbour, "find", ["mark-of-a-neighbour"])) >= 3
    assert await attempt(offender, "find", ["mark-of-a-neighbour"]) == []


async def test_the_hosts_files_can_not_be_read(
    coordinator: Coordinator, offender: Session, neighbour: Session, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the host's")
    there = [
        "/etc/shadow",
        "/etc/passwd-",
        f"/proc/{os.getpid()}/environ",
        "/proc/1/environ",
        "/proc/kcore",
        "/sys/kernel/notes",
        str(tmp_path / "secret"),
        str(coordinator._runtime / "lock"),
        str(neighbour._parts.workspace / "attempts.py"),
        str(offender._parts.workspace / "attempts.py"),
    ]
    found = {path: await attempt(offender, "read", path) for path in there if Path(path).exists()}
    assert len(found) > 5
    # What lies on the way to the interpreter is ours, and empty but for that.
    masked = {"/proc/kcore"}
    reached = {path: said for path, said in found.items() if said not in UNREACHABLE}
    assert reached.keys() <= masked, reached
    databases = [path.name for path in coordinator._runtime.rglob("*.db*")]
    assert databases
    assert await attempt(offender, "find", ["secret", "lock", "shadow", *databases]) == []


async def test_nothing_of_the_coordinators_environment_or_keys_is_in_sight(
    offender: Session,
) -> None:
    text = await attempt(offender, "all_environments")
    assert "HOME=/session/work" in text
    assert SECRET not in text
    assert await attempt(offender, "secrets_in", text) == []
    assert os.environ["SECRET_OF_THE_COORDINATOR"] == SECRET


async def test_no_process_on_the_host_has_a_key_in_its_command_line(
    keys: list[str], offender: Session
) -> None:
    assert len(keys) >= 2
    for path in Path("/proc").glob("[0-9]*/"):
        for name in ("cmdline", "environ"):
            try:
                said = (path / name).read_bytes()
            except OSError:
                continue  # it has ended
            assert not any(one.encode() in said for one in keys), path


async def test_only_its_own_directories_can_be_written(offender: Session) -> None:
    found = await attempt(offender, "writable")
    assert found == ["/dev/shm", "/session/tmp", "/session/work"]
    files = [sys.executable, os.__file__, "/etc/hosts", "/session/etc/passwd", "/usr/bin/env"]
    found = await attempt(offender, "written", files)
    assert set(found.values()) <= {"EROFS", "EACCES", "EPERM", "ETXTBSY"}, found


async def test_dangerous_calls_are_refused(offender: Session) -> None:
    numbers = _syscalls.TABLES[_syscalls.ARCHITECTURE]
    found = await attempt(offender, "calls", {name: numbers[name] for name in DENIED})
    assert found == dict.fromkeys(DENIED, "EPERM")
    assert await attempt(offender, "calls", {"clone3": numbers["clone3"]}) == {"clone3": "ENOSYS"}
    found = await attempt(offender, "new_namespaces", numbers["clone"])
    assert set(found.values()) == {"EPERM"}


@pytest.mark.needs("cgroups")
async def test_its_control_group_can_be_neither_seen_nor_left(
    coordinator: Coordinator, offender: Session
) -> None:
    own = groups(coordinator, offender)
    assert own
    for group in own:
        found = await attempt(offender, "written", [f"{group}/cgroup.procs"])
        assert set(found.values()) == {"ENOENT"}
    assert await attempt(offender, "find", ["cgroup.procs", "pids.max", "memory.max"]) == []
    pid = str(kernel_pid(offender))
    assert all(pid in (group / "cgroup.procs").read_text().split() for group in own)


@pytest.mark.parametrize("writable", [False, True])
async def test_a_mount_shows_what_is_mounted_and_is_written_only_if_it_says_so(
    coordinator: Coordinator, neighbour: Session, tmp_path: Path, writable: bool
) -> None:
    place = tmp_path / "there"
    place.mkdir()
    place.chmod(0o777)
    (place / "file").write_text("the host's")
    (tmp_path / "beside").write_text("a secret")
    mount = Mount(source=str(place), target="deep/in", writable=writable)
    async with coordinator.session(**given(), mounts=[mount]) as session:
        assert (await session.run("open('deep/in/file').read()")).text == '=> "the host\'s"'
        await attempt(session, "prove")
        assert await attempt(session, "find", ["beside"]) == []
        assert await attempt(session, "read", "deep/in/../../beside") == "ENOENT"
        call = await session.run("open('deep/in/new', 'w').close()")
        assert (call.status == "ok") is writable
        if not writable:
            assert call.error is not None
            assert "Read-only file system" in call.error.evalue
        found = await attempt(session, "against_process", kernel_pid(neighbour))
        assert (found["environ"], found["signal"]) == ("ENOENT", "ESRCH")
    assert (place / "new").exists() is writable
    assert (place / "file").read_text() == "the host's"


# Limits


async def test_limits_can_not_be_raised(offender: Session) -> None:
    found = await attempt(offender, "raised_limits")
    assert {"RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_MEMLOCK"} <= found.keys()
    assert set(found.values()) == {"refused"}


@pytest.mark.needs("cgroups")
async def test_memory_past_the_limit_is_explained_and_the_next_call_works(
    coordinator: Coordinator, neighbour: Session
) -> None:
    async with limited(coordinator, memory_bytes=128 * MiB) as session:
        await session.run("lost = 1")
        call = await session.run("print('begun')\nx = bytearray()\nwhile True: x += bytes(1 << 20)")
        assert (call.status, call.state_lost) == ("killed", True)
        assert call.cause is not None
        assert (call.cause.kind, call.cause.limit) == ("oom", 128 * MiB)
        assert call.cause.peak is not None
        assert 100 * MiB < call.cause.peak <= 128 * MiB
        assert call.text.startswith("begun\n")
        assert "128 MiB" in call.text
        await answers(neighbour)
        assert (await session.run("'lost' in globals()")).text == "=> False"


@pytest.mark.needs("cgroups")
async def test_a_child_that_used_too_much_memory_is_no_reason_for_a_later_death(
    coordinator: Coordinator,
) -> None:
    async with limited(coordinator, memory_bytes=128 * MiB) as session:
        code = (
            "import subprocess, sys\n"
            "hog = 'x = bytearray()\\nwhile True: x += bytes(1 << 20)'\n"
            "subprocess.run([sys.executable, '-c', hog]).returncode"
        )
        assert (await session.run(code)).text.startswith("=> -9\n")
        call = await session.run("import os; os.kill(os.getpid(), 11)")
        assert call.status == "killed"
        assert call.cause is not None
        assert (call.cause.kind, call.cause.signal) == ("signal", signal.SIGSEGV)


@pytest.mark.needs("cgroups")
async def test_a_fork_bomb_harms_nobody_and_nothing_of_it_is_left(
    coordinator: Coordinator, neighbour: Session
) -> None:
    async with limited(coordinator, processes=64) as session:
        assert (await attempt(session, "prove"))["CapEff"] == "0" * 16
        if group_file(coordinator, session, "pids.max") != "64":
            pytest.fail("not tried: the number of processes is not limited")
        code = "import attempts, signal\nattempts.fork_bomb()\nprint('full')\nsignal.pause()"
        bombed = await start(session, code, b"full\n")
        assert group_file(coordinator, session, "pids.current") == "64"
        await answers(neighbour)
        with promptly():
            result = await session.interrupt()
        assert result.delivered
        assert (await bombed.wait()).status == "interrupted"
        await answers(neighbour)
        held = members(coordinator, session)
        assert len(held) > 10
        directories = groups(coordinator, session)
    assert held.alive() == []
    held.close()
    assert not any(directory.exists() for directory in directories)


@pytest.mark.needs("cgroups")
async def test_a_call_that_is_a_fork_bomb_ends_at_its_deadline(
    coordinator: Coordinator, neighbour: Session
) -> None:
    async with limited(coordinator, processes=64) as session:
        await attempt(session, "prove")
        if group_file(coordinator, session, "pids.max") != "64":
            pytest.fail("not tried: the number of processes is not limited")
        code = "import attempts\nattempts.fork_bomb()\nexec(attempts.BOMB)"
        call = await session.run(code, timeout_s=2)
        assert (call.status, call.state_lost) == ("timeout", True)
        await answers(neighbour)
        assert (await session.run("1 + 1")).text == "=> 2"


@pytest.mark.needs("cgroups")
async def test_ten_thousand_threads_are_an_error_in_the_cell(
    coordinator: Coordinator, offender: Session, neighbour: Session
) -> None:
    assert group_file(coordinator, offender, "pids.max") == "256"
    said, count = await attempt(offender, "start_threads", 10_000)
    assert said == "can't start new thread"
    assert 100 < count < 256
    await answers(neighbour)
    await answers(offender)


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
async def test_a_full_temporary_directory_is_an_error_in_the_cell(
    offender: Session, neighbour: Session, place: str
) -> None:
    said, size = await attempt(offender, "fill", place)
    assert said == "ENOSPC"
    assert size <= 512 * MiB
    assert await attempt(offender, "make_files", place) == "ENOSPC"
    await answers(neighbour)
    await answers(offender)


async def test_temporary_files_take_half_of_a_small_memory_at_most(
    coordinator: Coordinator,
) -> None:
    async with limited(coordinator, memory_bytes=160 * MiB) as session:
        for place in ("/tmp", "/dev/shm"):
            said, size = await attempt(session, "fill", place)
            assert (said, size // MiB) == ("ENOSPC", 80)
        await answers(session)


async def test_a_crash_leaves_no_core_dump(offender: Session) -> None:
    assert await attempt(offender, "crash") == [signal.SIGABRT, False, []]


async def test_open_files_are_limited(coordinator: Coordinator) -> None:
    async with limited(coordinator, open_files=64) as session:
        assert await attempt(session, "open_many") == ["EMFILE", 64]
        await answers(session)


async def test_the_size_of_a_file_is_limited(coordinator: Coordinator) -> None:
    async with limited(coordinator, file_bytes=3 * MiB) as session:
        assert await attempt(session, "fill", ".") == ["EFBIG", 3 * MiB]
        await answers(session)


# Ends


@pytest.mark.needs("cgroups")
@pytest.mark.parametrize("end", ["close", "restart"])
async def test_a_process_that_has_left_every_group_and_heeds_nothing_is_gone(
    coordinator: Coordinator, neighbour: Session, end: str
) -> None:
    async with limited(coordinator) as session:
        left = await attempt(session, "linger")
        assert left > 2
        held = members(coordinator, session)
        assert len(held) == 2
        directories = groups(coordinator, session)
        if end == "restart":
            await session.restart()
            assert held.alive() == []
            await answers(session)
    assert held.alive() == []
    held.close()
    assert not any(directory.exists() for directory in directories)
    assert not (coordinator._workspaces / session.id).exists()


async def test_nothing_of_an_earlier_session_is_in_memory(coordinator: Coordinator) -> None:
    halves = ["token-of-an-", "earlier-session"]
    given_env = given()
    # Long enough for what comes after not to lie over all of it.
    given_env["env"]["TOKEN"] = "".join(halves) * 1_000
    async with coordinator.session(**given_env) as first, coordinator.session(**given()) as second:
        assert await attempt(first, "in_memory", halves) > 0
        assert await attempt(second, "in_memory", halves) == 0
        identity = [first.id[:10], first.id[10:]]
        assert await attempt(second, "in_memory", identity) == 0


async def test_sessions_do_not_draw_the_same_numbers(offender: Session, neighbour: Session) -> None:
    code = "import random, tempfile; print(random.random(), tempfile.mktemp())"
    texts = [(await session.run(code)).text for session in (offender, neighbour)]
    assert texts[0] != texts[1]
    assert not set(texts[0].split()) & set(texts[1].split())
