"""Kernels whose host is killed: their holder keeps them, and the next host goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from kernel_rigs import parent_of

from lasting import CELL, Log, lasting, run_cell, serving
from replsvc_kernels.backends.held import Holder
from replsvc_kernels.kernel import KernelDied, LastingKernel
from replsvc_kernels.messages import ExecuteResult, Kept

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")

# A line, a display and a marker on the other stream for each byte that somebody writes into `go`.
TALK = """
import os, sys
go = os.open("go", os.O_RDONLY)
n = 0
while os.read(go, 1) == b"x":
    n += 1
    print("line", n, flush=True)
    print("other", n, file=sys.stderr, flush=True)
    display({"text/plain": f"display {n}"}, raw=True)
print("done")
n
"""


class Host:
    """`lasting.py` in a process of its own."""

    def __init__(self, place: Path, code: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("lasting.py"), place, code, *options],
            stdout=subprocess.PIPE,
        )
        self.pid = int(self.line())
        self.kernel = os.pidfd_open(self.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def lines(self, count: int) -> None:
        for _ in range(count):
            assert self.line()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    async def kernel_ended(self) -> None:
        await trio.lowlevel.wait_readable(self.kernel)


def holder_of(place: Path) -> int:
    """The process that holds for hosts in `place`."""
    for path in Path("/proc").glob("[0-9]*"):
        words = (path / "cmdline").read_bytes().split(b"\0") if path.exists() else []
        if str(place / "data/holder").encode() in words:
            return int(path.name)
    raise LookupError("there is no holder")


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    path.chmod(0o755)
    try:
        (path / "sessions").mkdir(mode=0o711)
        (path / "data").mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    """Whatever hangs fails, where it hangs."""
    with trio.fail_after(60):
        yield


class Go:
    """The pipe that a cell reads a byte from for each thing that it says."""

    def __init__(self, place: Path) -> None:
        work = place / "sessions/one/work"
        work.mkdir(parents=True)
        work.parent.chmod(0o711)
        os.mkfifo(work / "go")
        (work / "go").chmod(0o666)
        self._path = work / "go"
        self._fd = os.open(self._path, os.O_RDWR)

    def __call__(self, times: int = 1) -> None:
        os.write(self._fd, b"x" * times)

    def stop(self) -> None:
        os.write(self._fd, b".")


def assert_all_there_once(log: Log, count: int) -> None:
    numbers = range(1, count + 1)
    assert log.text("stdout").decode() == "".join(f"line {n}\n" for n in numbers) + "done\n"
    assert log.text("stderr").decode() == "".join(f"other {n}\n" for n in numbers)
    assert log.displays() == [*(f"display {n}" for n in numbers), str(count)]


async def finished(place: Path, code: str = TALK) -> Log:
    """Go on with the cell in this process, to its end and the kernel's."""
    log = Log(place / "log")
    async with serving(place) as servers, lasting(servers, place, log.kept()) as kernel:
        assert (await run_cell(kernel, code, log)).status == "ok"
    return log


async def test_a_cell_goes_on_under_the_next_host_and_its_output_is_there_once(
    place: Path,
) -> None:
    go = Go(place)
    host = Host(place, TALK)
    go(3)
    host.lines(4)
    host.kill()
    go(5)  # nobody is there to hear of these
    go.stop()
    assert_all_there_once(await finished(place), 8)
    await host.kernel_ended()


async def test_a_second_host_may_be_killed_too(place: Path) -> None:
    go = Go(place)
    first = Host(place, TALK)
    go(2)
    first.lines(5)
    first.kill()
    go(2)
    second = Host(place, TALK)
    assert second.pid == first.pid
    second.lines(4)
    go(1)
    second.lines(1)
    second.kill()
    go(2)
    go.stop()
    assert_all_there_once(await finished(place), 7)


async def test_megabytes_that_the_host_had_read_are_there_once(place: Path) -> None:
    code = "for n in range(400_000): print(n, 'x' * 20)"
    host = Host(place, code)
    host.lines(6)
    host.kill()
    log = await finished(place, code)
    assert log.text("stdout").decode() == "".join(f"{n} {'x' * 20}\n" for n in range(400_000))


async def test_a_cell_that_ended_meanwhile_gives_its_reply(place: Path) -> None:
    code = f"{TALK}\nopen('ended', 'w').close()\n1 / 0"
    go = Go(place)
    host = Host(place, code)
    host.kill()
    go(2)
    go.stop()
    log = Log(place / "log")
    async with serving(place) as servers, lasting(servers, place, log.kept()) as kernel:
        reply = await run_cell(kernel, code, log)
        assert reply.failure is not None
        assert reply.failure.ename == "ZeroDivisionError"
        kernel.keep(CELL)
        async with kernel.execute("n", cell="c2") as cell:
            outputs = [output async for output in cell]
        assert [output.data["text/plain"] for output in outputs] == ["2"]


async def test_a_cell_that_its_host_could_not_ask_for_any_more_runs_once(place: Path) -> None:
    go = Go(place)
    host = Host(place, TALK, "unsent")
    host.process.wait()
    host.kill()
    go(1)
    go.stop()
    assert_all_there_once(await finished(place), 1)


async def test_a_kernel_that_died_meanwhile_says_how_and_what_it_wrote(place: Path) -> None:
    code = f"{TALK}\nos._exit(7)"
    go = Go(place)
    host = Host(place, code)
    go(1)
    host.lines(3)
    host.kill()
    go(1)
    go.stop()
    await host.kernel_ended()
    log = Log(place / "log")
    async with serving(place) as servers, lasting(servers, place, log.kept()) as kernel:
        with pytest.raises(KernelDied) as died:
            await run_cell(kernel, code, log)
    assert died.value.exit.code == 7
    assert log.text("stdout") == b"line 1\nline 2\ndone\n"


async def test_a_kernel_whose_fork_server_died_as_well_goes_on(place: Path) -> None:
    go = Go(place)
    host = Host(place, TALK)
    server = parent_of(host.pid)
    host.kill()
    ended = os.pidfd_open(server)
    os.kill(server, signal.SIGKILL)
    await trio.lowlevel.wait_readable(ended)
    os.close(ended)
    go(1)
    go.stop()
    assert_all_there_once(await finished(place), 1)
    await host.kernel_ended()


async def test_nobody_comes_and_nothing_is_left_after_the_grace(place: Path) -> None:
    Go(place)
    host = Host(place, TALK, "hurried")
    watched = [os.pidfd_open(pid) for pid in (holder_of(place), parent_of(host.pid))]
    host.kill()
    for fd in (*watched, host.kernel):
        await trio.lowlevel.wait_readable(fd)
        os.close(fd)
    assert not (place / "data/holder").exists()


async def test_nothing_is_left_when_the_last_host_closes_its_kernel(place: Path) -> None:
    Go(place)
    host = Host(place, TALK)
    host.kill()
    watched = [os.pidfd_open(pid) for pid in (holder_of(place), parent_of(host.pid))]
    async with serving(place) as servers, lasting(servers, place, Kept()):
        groups = [Path(path) for path in servers.cgroups.paths] if servers.cgroups else []
    for fd in (*watched, host.kernel):
        await trio.lowlevel.wait_readable(fd)
        os.close(fd)
    assert not (place / "data/holder").exists()
    assert not (place / "sessions/one/run").exists()
    assert not any(group.exists() for group in groups)


async def test_a_host_may_leave_without_ending_its_kernels(place: Path) -> None:
    async def value(kernel: LastingKernel, code: str, cell: str) -> list[str]:
        async with kernel.execute(code, cell=cell) as running:
            outputs = [output async for output in running]
        kernel.keep(cell)
        return [one.data["text/plain"] for one in outputs if isinstance(one, ExecuteResult)]

    async with (
        serving(place) as servers,
        lasting(servers, place, Kept()) as one,
        lasting(servers, place, Kept(), name="two") as two,
    ):
        await value(one, "x = 1", "c1")
        await value(two, "x = 2", "c1")
        servers.leave()
    async with serving(place) as servers:
        await servers.find()
        assert servers.left == {"one", "two"}
        async with (
            lasting(servers, place, Kept(), None) as one,
            lasting(servers, place, Kept(), None, "two") as two,
        ):
            assert await value(one, "x", "c2") == ["1"]
            assert await value(two, "x", "c2") == ["2"]


async def test_a_kernel_that_nobody_wants_is_refused(place: Path) -> None:
    Go(place)
    host = Host(place, TALK)
    host.kill()
    async with serving(place) as servers:
        await servers.find()
        await servers.refuse("one")
        await host.kernel_ended()
        assert not servers.left


async def test_displays_that_there_is_no_room_for_are_counted(place: Path) -> None:
    code = (
        "import sys; sys.modules['_replsvc_guest.keeping'].MOST_BYTES = 3_000\n"
        f"{TALK}\n"
        "os.close(os.open('ended', os.O_WRONLY))\n"
        "n"
    )
    go = Go(place)
    os.mkfifo(place / "sessions/one/work/ended")
    (place / "sessions/one/work/ended").chmod(0o666)
    host = Host(place, code)
    go(1)
    host.lines(1)
    host.kill()
    go(8)
    go.stop()
    # It opens once the cell opens its end.
    ended = place / "sessions/one/work/ended"
    os.close(await trio.to_thread.run_sync(os.open, ended, os.O_RDONLY, abandon_on_cancel=True))
    log = await finished(place, code)
    shown = log.displays()
    assert shown[-2:] == ["display 9", "9"]
    missing = 10 - len(shown)
    assert missing > 0
    # One that the killed host had kept, and not said so to the kernel, is counted too.
    said = log.text("stderr").decode()
    assert any(f"[{n} displays are missing" in said for n in (missing, missing + 1))
    numbers = range(1, 10)
    assert log.text("stdout").decode() == "".join(f"line {n}\n" for n in numbers) + "done\n"


def asked_by(user: int, path: Path) -> bytes:
    """What the holder at `path` answers to a process of that user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresuid(user, user, user)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(str(path))
                os.write(writing, b"connected ")
                client.send(b'{"list": true}')
                os.write(writing, client.recv(1_000))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor, not a path
        found = answer.read()
    os.waitpid(pid, 0)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_another_user_is_not_heard(place: Path) -> None:
    async with serving(place) as servers:
        await servers.start()
        servers.holder.put("secret", facts={"key": "x"})
        path = place / "data/holder"
        path.parent.chmod(0o711)
        path.chmod(0o666)
        assert asked_by(64_321, path) == b"connected "
        # Neither has it taken the place of the one who is connected.
        assert servers.holder.items()["secret"].facts == {"key": "x"}


async def test_what_a_host_said_last_is_held_when_the_next_one_comes_at_once(place: Path) -> None:
    first = Holder.start(place / "data", 60)
    pid = holder_of(place)
    os.kill(pid, signal.SIGSTOP)
    try:
        # It sees both at the same time: these, and that another one is there.
        for number in range(20):
            first.put(f"late/{number}", facts={"number": number})
        second = Holder.connect(place / "data")
        assert second is not None
    finally:
        os.kill(pid, signal.SIGCONT)
    held = await trio.to_thread.run_sync(second.items)
    assert [item.facts["number"] for item in held.values()] == list(range(20))
    second.drop("late")
    first.close()
    second.close()
