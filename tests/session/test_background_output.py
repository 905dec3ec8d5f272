"""What processes of ended cells write is kept, and bounded like everything else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import trio

from replsvc.calls import Call, Event
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.session import Session

MakeConfig = Callable[..., Config]
ENDLESS = (
    "import subprocess, sys\n"
    "loud = subprocess.Popen([sys.executable, '-c', 'while True: print(\"x\" * 999)'])"
)


async def following(c: Coordinator, s: Session, call: Call) -> AsyncGenerator[Event, None]:
    """What the call's processes write after its end, as it comes."""
    async for events in c.log.follow(s.id, call_id=call.id):
        for event in events:
            if event.data.get("background"):
                yield event


async def test_a_flood_in_the_background_stops_at_the_logs_bound_and_is_counted(
    make_config: MakeConfig,
) -> None:
    async with Coordinator(make_config(max_log_bytes=100_000)) as c, c.session() as s:
        call = await s.run(ENDLESS)
        kept = dropped = 0
        with trio.fail_after(60):
            async with aclosing(following(c, s, call)) as events:
                async for event in events:
                    kept += len(event.blob or b"")
                    dropped = event.data.get("dropped_bytes", dropped)
                    if dropped > 2_000_000:
                        break
        assert kept <= 100_000
        assert (await s.run("loud.kill(); loud.wait(); 1")).text == "=> 1"
        said = await c.log.read(s.id, call_id=call.id)
        # What is left out is said ever more seldom: the log stays small.
        assert len([e for e in said if "dropped_bytes" in e.data]) < 40


async def test_each_cell_has_a_bound_of_its_own(make_config: MakeConfig) -> None:
    async with Coordinator(make_config(max_log_bytes=10_000)) as c, c.session() as s:
        code = (
            "import subprocess, sys\n"
            "later = subprocess.Popen([sys.executable, '-c',"
            " 'import sys; sys.stdin.read(); print(\"y\" * 8_000)'], stdin=subprocess.PIPE)"
        )
        for _ in range(2):
            call = await s.run(code)
            await s.run("later.stdin.close(); later.wait()")
            kept = 0
            with trio.fail_after(30):
                async with aclosing(following(c, s, call)) as events:
                    async for event in events:
                        kept += len(event.blob or b"")
                        if kept >= 8_001:
                            break


async def test_the_names_of_its_streams_can_be_opened(session: Session) -> None:
    call = await session.run(
        "!echo one > /dev/stdout\n"
        "!echo two > /dev/stderr\n"
        "print('three', file=open('/dev/stdout', 'w'))\n"
        "print('four', file=open('/proc/self/fd/2', 'w'))"
    )
    assert call.status == "ok", call.text
    assert sorted(call.output.text.split()) == ["four", "one", "three", "two"]


LATE = """
import threading, os
go, done = threading.Event(), threading.Event()
from IPython.display import display
handle = display({'text/plain': 'first'}, raw=True, display_id=True)
def later():
    go.wait()
    print('before')
    display({'text/plain': 'late', 'application/json': {'a': 1}}, raw=True)
    print('between')
    handle.update({'text/plain': 'second'}, raw=True)
    print('after')
    done.set()
thread = threading.Thread(target=later)
thread.start()
"""


async def test_what_a_thread_displays_after_its_cell_is_its_cells_and_in_order(
    make_config: MakeConfig,
) -> None:
    async with Coordinator(make_config()) as c, c.session() as s:
        call = await s.run(LATE)
        other = await s.run("go.set(); done.wait(); print('mine')")
        assert other.output.text == "mine\n"
        said: list[object] = []
        with trio.fail_after(30):
            async with aclosing(following(c, s, call)) as events:
                async for event in events:
                    shown = event.data.get("data", {}).get("text/plain")
                    said += [(event.data["type"], shown)] if shown else (event.blob or b"").split()
                    if b"after" in said:
                        break
        assert said == [
            b"before",
            ("display_data", "late"),
            b"between",
            ("update_display_data", "second"),
            b"after",
        ]
        shown = [e.data for e in await c.log.read(s.id, call_id=call.id) if "display_id" in e.data]
        assert shown[1]["data"]["application/json"] == {"a": 1}
        assert shown[0]["display_id"] == shown[2]["display_id"] != shown[1]["display_id"]


async def test_displays_in_the_background_are_bounded_and_counted_like_what_is_written(
    make_config: MakeConfig,
) -> None:
    code = LATE.replace("    print('before')\n", "    for _ in range(40): display('x' * 9_000)\n")
    async with Coordinator(make_config(max_log_bytes=100_000)) as c, c.session() as s:
        call = await s.run(code)
        await s.run("go.set(); done.wait(); thread.join()")
        kept = dropped = 0
        with trio.fail_after(30):
            async with aclosing(following(c, s, call)) as events:
                async for event in events:
                    kept += len(str(event.data.get("data", "")))
                    dropped = event.data.get("dropped_bytes", dropped)
                    if dropped > 200_000:
                        break
        assert kept < 110_000
