"""A service that is killed, and the next one on the same data directory."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from survivor import config

from replsvc.calls import Call, CallRequest, Event
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import BackendUnavailableError, InvalidInputError
from replsvc.session import Session
from replsvc.session_values import SessionRequest

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")

TALK = """
import os, sys
go = os.open("go", os.O_RDWR)
n = 0
while os.read(go, 1) == b"x":
    n += 1
    print("line", n, flush=True)
    print("other", n, file=sys.stderr, flush=True)
    display({"text/plain": f"display {n}"}, raw=True)
print("done")
n
"""
FIFO = "import os; os.mkfifo('go')"


class Service:
    """`survivor.py` in a process of its own."""

    def __init__(self, data: Path, *requests: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("survivor.py"), data]
            + [json.dumps(one) for one in requests],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.kernels: dict[str, int] = {}
        self._said: list[list[Any]] = []
        self.sessions = self.until("ready")

    def until(self, word: str, *more: object) -> list[Any]:
        """Wait until it has said that, once for each time that this is called; what follows it."""
        assert self.process.stdout is not None
        wanted = [word, *more]
        for said in self._said:
            if said[: len(wanted)] == wanted:
                self._said.remove(said)
                return said[1:]
        while line := self.process.stdout.readline():
            said = json.loads(line)
            if said[0] == "open":
                self.kernels[said[1]] = os.pidfd_open(said[2])
            if said[: len(wanted)] == wanted:
                return list(said[1:])
            self._said.append(said)
        raise AssertionError(f"it ended before it said {word}")

    def submit(self, session: str, call: str, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{session} {call} {json.dumps(code)}\n".encode())
        self.process.stdin.flush()
        self.until("submitted", call)

    def run(self, session: str, call: str, code: str) -> None:
        self.submit(session, call, code)
        self.until("call_finished", call)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()


@pytest.fixture
def data() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    """Whatever hangs fails, where it hangs."""
    with trio.fail_after(60):
        yield


def go(service: Service, session: str, text: str) -> None:
    """Write to the pipe that the session's cell reads from, by its process."""
    pid = next(
        int(line.split()[1])
        for line in Path(f"/proc/self/fdinfo/{service.kernels[session]}").read_text().splitlines()
        if line.startswith("Pid:")
    )
    with Path(f"/proc/{pid}/cwd/go").open("wb") as pipe:
        pipe.write(text.encode())


async def ended(session: Session, call_id: str) -> Call:
    call = await session.find(call_id)
    if not call.ended:
        async for found in session.log.follow(session.id, call.seq, call_id=call_id):
            if found[-1].kind == "call_finished":
                return Call.model_validate(found[-1].data["call"])
    return call


async def events(service: Coordinator, session_id: str) -> tuple[Event, ...]:
    return await service.log.read(session_id)


def printed(events: tuple[Event, ...], call_id: str, name: str) -> str:
    blobs = [
        event.blob or b""
        for event in events
        if event.call_id == call_id and event.data.get("name") == name
    ]
    return b"".join(blobs).decode()


def displays(events: tuple[Event, ...], call_id: str) -> list[str]:
    return [
        event.data["data"]["text/plain"]
        for event in events
        if event.call_id == call_id and "data" in event.data and "mark" in event.data
    ]


LASTS = {"id": "lasts", "name": "mine", "survive_restart": True}


async def test_a_running_call_and_those_behind_it_go_on_with_the_next_service(data: Path) -> None:
    first = Service(data, LASTS)
    first.run("lasts", "c0", f"{FIFO}; kept = 'this'")
    first.submit("lasts", "c1", TALK)
    first.submit("lasts", "c2", "print(kept, n)")
    go(first, "lasts", "xx")
    for _ in range(5):
        first.until("output", "c1")
    first.kill()
    go(first, "lasts", "xxx")
    second = Service(data)
    assert second.sessions == ["lasts"]
    second.kernels = first.kernels
    go(second, "lasts", "x")
    second.until("output", "c1")
    second.kill()
    go(second, "lasts", "x.")
    async with Coordinator(config(str(data))) as service:
        session = service.get("lasts")
        call, behind = await ended(session, "c1"), await ended(session, "c2")
        # Posted again, it is the same call.
        again = await session.submit(CallRequest(id="c1", input={"code": TALK}))
        assert (await again.wait()) == call
        info = await session.info()
        assert (info.name, info.generation, info.state) == ("mine", 1, "idle")
        log = await events(service, "lasts")
        await service.close("lasts")
    assert call.status == behind.status == "ok"
    assert behind.output.text == "this 7\n"
    numbers = range(1, 8)
    assert printed(log, "c1", "stdout") == "".join(f"line {n}\n" for n in numbers) + "done\n"
    assert printed(log, "c1", "stderr") == "".join(f"other {n}\n" for n in numbers)
    assert displays(log, "c1") == [*(f"display {n}" for n in numbers), "7"]
    assert sum(event.kind == "call_started" for event in log) == 3
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    # The result is of the whole call, also of what only the first service saw.
    assert "line 1\n" in call.output.text
    assert call.output.total_bytes == len(printed(log, "c1", "stdout")) + len(
        printed(log, "c1", "stderr")
    )
    assert select.select([first.kernels["lasts"]], [], [], 0)[0]
    assert not list((data / "workspaces").iterdir())
    assert not (data / "holder").exists()


async def test_a_session_that_does_not_survive_is_stopped_and_its_call_says_why(
    data: Path,
) -> None:
    first = Service(data, {"id": "ends"}, LASTS)
    first.run("ends", "c0", FIFO)
    first.submit("ends", "c1", TALK)
    first.submit("ends", "c2", "2")
    go(first, "ends", "x")
    first.until("output", "c1")
    first.kill()
    await trio.lowlevel.wait_readable(first.kernels["ends"])
    async with Coordinator(config(str(data))) as service:
        assert [session.id for session in service.list()] == ["lasts"]
        assert (await service.log.session("ends")).state == "stopped"
        for call_id in ("c1", "c2"):
            call = await service.find_call("ends", call_id)
            assert call.cause is not None
            assert (call.status, call.cause.kind) == ("killed", "service_stop")
        assert (await service.get("lasts").run("1 + 1")).text == "=> 2"


async def test_a_kernel_that_died_meanwhile_ends_its_call_with_the_cause(data: Path) -> None:
    first = Service(data, LASTS)
    first.run("lasts", "c0", FIFO)
    first.submit("lasts", "c1", f"{TALK}\nos._exit(7)")
    go(first, "lasts", "x")
    first.until("output", "c1")
    first.kill()
    go(first, "lasts", "x.")
    await trio.lowlevel.wait_readable(first.kernels["lasts"])
    async with Coordinator(config(str(data))) as service:
        session = service.get("lasts")
        call = await ended(session, "c1")
        assert call.cause is not None
        assert (call.status, call.cause.kind, call.cause.exit_code) == ("killed", "exit", 7)
        assert call.output.text.endswith("done\n")
        assert (await session.run("1 + 1")).text == "=> 2"
        assert (await session.info()).generation == 2


async def test_a_service_may_stop_and_keep_its_survivors(data: Path) -> None:
    async with Coordinator(config(str(data))) as service:
        await service.open(SessionRequest(**LASTS))
        other = await service.open(SessionRequest(id="other", survive_restart=True))
        assert (await service.get("lasts").run("x = 1")).status == "ok"
        assert (await other.run("open('file', 'w').write('there')")).status == "ok"
        await service.stop(keep_survivors=True)
    async with Coordinator(config(str(data))) as service:
        assert (await service.get("lasts").run("x")).text == "=> 1"
        assert (await service.get("other").run("open('file').read()")).text == "=> 'there'"
        with pytest.raises(InvalidInputError, match="objects"):
            await service.open(SessionRequest(survive_restart=True), extensions=())


async def test_what_survives_is_the_newest_kernel_and_its_workspace(data: Path) -> None:
    async with Coordinator(config(str(data))) as service:
        session = await service.open(SessionRequest(**LASTS, files={"given": {"text": "x"}}))
        await session.run("open('old', 'w').close()")
        await session.reset()
        await session.restart()
        await session.run("name = 1; open('new', 'w').close()")
        await service.stop(keep_survivors=True)
    async with Coordinator(config(str(data))) as service:
        session = service.get("lasts")
        info = await session.info()
        assert (info.generation, info.survive_restart) == (3, True)
        call = await session.run("import os; name, sorted(os.listdir('.'))")
        assert call.text == "=> (1, ['given', 'new'])"
        await session.restart()
        assert (await session.info()).generation == 4
        assert (await session.run("name")).status == "error"


async def test_what_a_background_process_writes_later_is_its_cells(data: Path) -> None:
    first = Service(data, LASTS)
    first.run("lasts", "c0", FIFO)
    late = "import subprocess; p = subprocess.Popen(['sh', '-c', 'read x < go; echo $x'])"
    first.run("lasts", "c1", f"print('early'); {late}")
    first.run("lasts", "c2", "1 + 1")
    first.kill()
    async with Coordinator(config(str(data))) as service:
        session = service.get("lasts")
        before = (await service.log.feed("lasts")).last_seq
        await session.run("with open('go', 'w') as go: go.write('late\\n')")
        async for found in service.log.follow("lasts", before, call_id="c1"):
            assert [event.data["background"] for event in found] == [True]
            break
        assert printed(await events(service, "lasts"), "c1", "stdout") == "early\nlate\n"


@pytest.mark.parametrize(
    ("settings", "request_", "why"),
    [
        ({"isolation": "none"}, {}, "isolated"),
        ({"isolation": "best", "data": None}, {}, "data directory"),
        ({"isolation": "best"}, {"lifetime": "call"}, "lifetime"),
    ],
)
async def test_what_can_not_survive_is_refused(
    data: Path, settings: dict[str, Any], request_: dict[str, Any], why: str
) -> None:
    async with Coordinator(Config(**{"data": data, **settings})) as service:
        with pytest.raises((BackendUnavailableError, InvalidInputError), match=why):
            await service.open(SessionRequest(survive_restart=True, **request_))
        assert not service.list()
