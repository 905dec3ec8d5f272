"""A kernel is untrusted: the worst that it can do is end its own session's kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
from hostile_cells import IGNORED, PRELUDE, VIOLATIONS

from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.session import Session

MakeConfig = Callable[..., Config]


async def test_a_broken_protocol_ends_its_kernel_and_says_why(
    coordinator: Coordinator, session: Session
) -> None:
    async with coordinator.session() as neighbour:
        await neighbour.run("kept = 1")
        for name, attack in VIOLATIONS.items():
            code = f"print('before', flush=True)\n{PRELUDE}\n{attack}\nimport time; time.sleep(30)"
            with trio.fail_after(30):
                call = await session.run(code)
            kind = call.cause and call.cause.kind
            assert (call.status, kind, call.state_lost) == ("killed", "protocol", True), name
            assert call.output.text.startswith("before"), name
            assert (await session.run("1 + 1")).text == "=> 2", name
            assert (await neighbour.run("kept")).text == "=> 1", name


async def test_a_lie_about_others_changes_nothing(
    coordinator: Coordinator, session: Session
) -> None:
    async with coordinator.session() as neighbour:
        await neighbour.run("kept = 1")
        for name, attack in IGNORED.items():
            with trio.fail_after(60):
                call = await session.run(f"{PRELUDE}\n{attack}\n'the end'")
            assert (call.status, call.text) == ("ok", "=> 'the end'"), name
            assert (await session.run("print('next'); 1 + 1")).text == "next\n=> 2", name
            assert (await neighbour.run("kept")).text == "=> 1", name
        assert (await session.info()).generation == 1


async def test_a_cell_that_replies_to_itself_gets_what_it_asked_for(session: Session) -> None:
    """It ends its own call early, with what it likes; the session goes on."""
    forged = (
        'answer(*message("execute_reply", {"status": "ok", "execution_count": 77}))\n'
        'publish(*message("status", {"execution_state": "idle"}))'
    )
    call = await session.run(f"{PRELUDE}\n{forged}")
    assert call.status == "ok"
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_a_cell_that_floods_its_own_call_harms_nobody_else(session: Session) -> None:
    flood = (
        "for n in range(20_000):\n"
        '    publish(*message("comm_msg", {"comm_id": str(n), "data": {"x": "y" * 100}}))'
    )
    assert (await session.run(f"{PRELUDE}\n{flood}")).status == "ok"
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_markers_that_lie_cost_order_and_no_bytes(session: Session) -> None:
    """Whatever a cell writes between markers of its own making, each byte is in the log.

    What it publishes behind its kernel's back may be left out: its reply says how much there is.
    """
    code = (
        f"{PRELUDE}\n"
        "capture = kernel.capture\n"
        "for n in range(50):\n"
        "    print('line', n, flush=True)\n"
        "    publish(*message('display_data', {'data': {'text/plain': f'shown {n}'}},"
        " metadata={'replsvc_mark': 10**9 - n}))\n"
    )
    call = await session.run(code)
    assert call.status == "ok"
    for number in range(50):
        assert f"line {number}\n" in call.output.text


async def test_the_coordinator_stays_small_while_a_kernel_floods_it(
    coordinator: Coordinator, session: Session
) -> None:
    """200 MB of displays, and of replies to nobody: what is not wanted is not kept."""
    flood = (
        "line = 'x' * 1_000_000\n"
        "for n in range(100):\n"
        '    publish(*message("comm_msg", {"data": line}))\n'
        '    publish(*message("display_data", {"data": {"text/plain": line}}, {}))'
    )
    await session.run(PRELUDE)
    before = resident_bytes()
    call = await session.run(flood)
    assert call.status == "ok"
    assert resident_bytes() - before < 64 * 1024 * 1024


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
