"""The reaper as a real process: whatever a kernel starts, nothing outlives its host."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from kernel_rigs import parent_of

from replsvc_kernels.backends.reaped import MARKER, REAPER, ReaperProcess
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import LaunchError
from replsvc_kernels.messages import Exit

# Prints the pids of itself and of processes that left it by every road there is, then waits.
TREE = """
import os, signal, subprocess, sys, time
def start(*how):
    return subprocess.Popen([*how, "sleep", "1000"], stdout=subprocess.DEVNULL).pid
pids = [os.getpid(), start(), start("setsid"), start("nohup")]
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        os.environ.clear()
        os.execve("/bin/sleep", ["sleep", "1000"], {} if "bare" in sys.argv else KEPT)
    os.write(write, str(pid).encode())
    os._exit(0)
os.wait()
pids.append(int(os.read(read, 20)))
print(*pids, flush=True)
time.sleep(1000)
"""
TREE = "import os; KEPT = dict(os.environ)\n" + TREE


class Reaper:
    """Drives `reaper.py` as the host does, without the host's code."""

    def __init__(self, *argv: str, keep: tuple[int, ...] = ()) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", REAPER, str(theirs.fileno()),
                 ",".join(map(str, keep)), "--", *argv],
                pass_fds=[theirs.fileno(), *keep], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip

    def say(self, **packet: Any) -> None:
        self.socket.send(json.dumps(packet).encode())

    def hear(self) -> Any:
        data = self.socket.recv(4096)
        return json.loads(data) if data else None

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def close(self) -> None:
        self.socket.close()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def reap() -> Iterator[Any]:
    opened: list[Reaper] = []

    def start(*argv: str, keep: tuple[int, ...] = ()) -> Reaper:
        opened.append(Reaper(*argv, keep=keep))
        return opened[-1]

    yield start
    for reaper in opened:
        reaper.close()


def test_it_reports_pid_exit_code_and_that_nothing_is_left(reap: Any) -> None:
    reaper = reap(sys.executable, "-c", "import os; print(os.getpid()); raise SystemExit(3)")
    assert reaper.hear() == {"pid": int(reaper.line())}
    assert reaper.hear() == {"exit": 3}
    assert reaper.hear() == {"swept": True}
    assert reaper.process.wait(30) == 0


def test_it_reports_the_signal_that_ended_the_kernel(reap: Any) -> None:
    reaper = reap(sys.executable, "-c", "import os; os.abort()")
    reaper.hear()
    assert reaper.hear() == {"exit_signal": signal.SIGABRT}


def test_orphans_are_swept_when_the_kernel_ends(reap: Any, watched: Any) -> None:
    reaper = reap(sys.executable, "-c", TREE)
    reaper.hear()
    pids = list(map(int, reaper.line().split()))
    for pid in pids:
        watched.add(pid)
    os.kill(pids[0], signal.SIGKILL)
    assert reaper.hear() == {"exit_signal": signal.SIGKILL}
    assert reaper.hear() == {"swept": True}
    assert watched.alive() == []


def test_kill_ends_the_kernel_and_all_it_started(reap: Any, watched: Any) -> None:
    reaper = reap(sys.executable, "-c", TREE, "bare")
    reaper.hear()
    for pid in map(int, reaper.line().split()):
        watched.add(pid)
    reaper.say(kill=True)
    assert reaper.hear() == {"exit_signal": signal.SIGKILL}
    assert reaper.hear() == {"swept": True}
    assert watched.alive() == []


def test_a_host_that_goes_away_takes_the_tree_along(reap: Any, watched: Any) -> None:
    reaper = reap(sys.executable, "-c", TREE, "bare")
    reaper.hear()
    for pid in map(int, reaper.line().split()):
        watched.add(pid)
    reaper.socket.close()
    watched.wait_gone()
    assert reaper.process.wait(30) == 0


def test_stopped_processes_are_swept_too(reap: Any, watched: Any) -> None:
    reaper = reap(sys.executable, "-c", TREE)
    reaper.hear()
    for pid in map(int, reaper.line().split()):
        watched.add(pid)
        os.kill(pid, signal.SIGSTOP)
    reaper.say(kill=True)
    assert reaper.hear() == {"exit_signal": signal.SIGKILL}
    assert reaper.hear() == {"swept": True}
    assert watched.alive() == []


def test_signals_reach_the_kernels_group_and_are_confirmed(reap: Any) -> None:
    reaper = reap(
        sys.executable,
        "-c",
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('got it', flush=True))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()",
    )
    reaper.hear()
    assert reaper.line() == "ready"
    reaper.say(signal=signal.SIGUSR1)
    assert reaper.hear() == {"delivered": True}
    assert reaper.line() == "got it"
    reaper.say(signal=99_999)
    assert reaper.hear() == {"delivered": False}


def test_the_kernel_ignores_no_signal_that_its_parents_ignore(reap: Any) -> None:
    ignored = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGQUIT, signal.SIGUSR1)
    }
    try:
        reaper = reap(
            "/bin/sh", "-c", "grep SigIgn /proc/self/status; grep SigBlk /proc/self/status"
        )
        reaper.hear()
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)
    assert [int(reaper.line().split()[1], 16) for _ in range(2)] == [0, 0]


def test_the_kernel_inherits_what_it_should_keep_and_nothing_else(reap: Any) -> None:
    read, write = os.pipe()
    try:
        program = (
            "import os\n"
            "def there(fd):\n"
            "    try: return bool(os.fstat(fd))\n"
            "    except OSError: return False\n"
            "print(*filter(there, range(256)))"
        )
        reaper = reap(sys.executable, "-I", "-c", program, keep=(write,))
        assert reaper.line().split() == ["0", "1", "2", str(write)]
    finally:
        os.close(read)
        os.close(write)


def test_a_program_is_found_on_the_path(reap: Any) -> None:
    reaper = reap("sh", "-c", "echo found")
    assert reaper.line() == "found"


def test_a_program_that_is_not_there_is_said(reap: Any) -> None:
    reaper = reap("/no/such/program")
    assert "No such file" in reaper.hear()["error"]
    assert reaper.hear() is None


# The same from the host's side.


@asynccontextmanager
async def reaped(*argv: str, **env: str) -> AsyncIterator[tuple[ReaperProcess, int]]:
    read, write = os.pipe()
    try:
        async with background_nursery() as nursery:
            process = ReaperProcess()
            environment = {"PATH": "/usr/bin:/bin", **env}
            await nursery.start(process.run, argv, environment, "/", [], (write, write))
            yield process, read
    finally:
        os.close(read)
        os.close(write)


async def pids_from(fd: int) -> list[int]:
    await trio.lowlevel.wait_readable(fd)
    return list(map(int, os.read(fd, 4096).split()))


async def test_a_reaper_that_is_killed_takes_its_tree_along(watched: Any) -> None:
    async with reaped(sys.executable, "-c", TREE) as (process, printed):
        pids = await pids_from(printed)
        assert pids[0] == process.pid
        for pid in pids:
            watched.add(pid)
        os.kill(parent_of(pids[0]), signal.SIGKILL)
        assert await process.wait_exited() == Exit(signal=signal.SIGKILL)
        await process.kill()
        assert watched.alive() == []
        assert not await process.signal(signal.SIGINT)


async def test_cancelling_a_process_ends_its_tree(watched: Any) -> None:
    async with reaped(sys.executable, "-c", TREE, "bare") as (_, printed):
        for pid in await pids_from(printed):
            watched.add(pid)
    assert watched.alive() == []


async def test_a_cancelled_signal_does_not_shift_the_answers_of_others() -> None:
    async with reaped("/bin/sh", "-c", "trap : USR1; echo 1; while :; do :; done") as (process, fd):
        await pids_from(fd)
        with trio.CancelScope() as scope:
            scope.cancel()
            await process.signal(99_999)
        answers: dict[int, bool] = {}

        async def send(number: int) -> None:
            answers[number] = await process.signal(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, signal.SIGUSR1)
            nursery.start_soon(send, 88_888)
        assert answers == {signal.SIGUSR1: True, 88_888: False}


async def test_a_program_that_cannot_be_executed_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="/no/such/program can't be executed"):
        async with reaped("/no/such/program"):
            pass


async def test_an_argument_with_a_nul_byte_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="can't be started"):
        async with reaped("/bin/sh", "\0"):
            pass


async def test_only_the_given_environment_and_the_marker_reach_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COORDINATOR", "x")
    async with reaped("/usr/bin/env", GIVEN="y", LANG="C.UTF-8") as (process, printed):
        await process.wait_exited()
        assert select.select([printed], [], [], 0)[0]
        names = {line.partition("=")[0] for line in os.read(printed, 4096).decode().splitlines()}
        assert names == {"PATH", "GIVEN", "LANG", MARKER}
