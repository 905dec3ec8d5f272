"""Event loops in cells: every usual way of running one works."""

from __future__ import annotations

import pytest

from replsvc.session import Session

DEFINE = """
import asyncio
async def five():
    await asyncio.sleep(0)
    return 5
"""


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(five())",
        "await five()",
        "asyncio.get_event_loop().run_until_complete(five())",
        "asyncio.new_event_loop().run_until_complete(five())",
        "with asyncio.Runner() as runner: value = runner.run(five())\nvalue",
        "async with asyncio.TaskGroup() as group: task = group.create_task(five())\ntask.result()",
        "[n async for n in numbers()][-1]",
        "import trio\nasync def main():\n    await trio.sleep(0)\n    return 5\ntrio.run(main)",
        "(await asyncio.gather(*(five() for _ in range(3))))[0]",
        "import threading\nresult = []\n"
        "thread = threading.Thread(target=lambda: result.append(asyncio.run(five())))\n"
        "thread.start(); thread.join(); result[0]",
    ],
)
async def test_a_loop_runs_in_a_cell(session: Session, code: str) -> None:
    await session.run(DEFINE + "async def numbers():\n    for n in range(6): yield n")
    for _ in range(2):
        call = await session.run(code)
        assert (call.status, call.text) == ("ok", "=> 5")


async def test_asyncio_run_inside_an_awaiting_cell_has_a_hint(session: Session) -> None:
    call = await session.run(
        DEFINE + "async def inside(): return asyncio.run(five())\nawait inside()"
    )
    assert call.status == "error"
    assert call.text.splitlines()[-1] == (
        "Hint: this cell runs inside the kernel's event loop; write `await ...` instead."
    )


async def test_a_task_goes_on_while_later_cells_wait(session: Session) -> None:
    await session.run(DEFINE + "task = asyncio.ensure_future(five())")
    assert (await session.run("await task")).text == "=> 5"
