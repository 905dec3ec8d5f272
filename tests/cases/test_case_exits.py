"""Every way out: an exit is a result, a death is told with its cause, and the next call works."""

from __future__ import annotations

import pytest

from replsvc.coordinator import Coordinator
from replsvc.session import Session

MiB = 1024 * 1024


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("exit()", "SystemExit"),
        ("quit()", "SystemExit"),
        ("exit(4)", "SystemExit: 4"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("import asyncio\nawait asyncio.sleep(0)\nraise SystemExit(5)", "SystemExit: 5"),
    ],
)
async def test_an_exit_is_a_result_and_the_kernel_lives(
    session: Session, code: str, says: str
) -> None:
    await session.run("kept = 1")
    call = await session.run(f"print('before')\n{code}")
    assert (call.status, call.state_lost, call.cause) == ("error", False, None)
    assert call.text == f"before\n{says}"
    assert (await session.run("kept")).text == "=> 1"


@pytest.mark.parametrize(
    ("code", "kind", "exit_code", "signal"),
    [
        ("os._exit(7)", "exit", 7, None),
        ("os.abort()", "signal", None, 6),
        ("import ctypes; ctypes.string_at(0)", "signal", None, 11),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "signal", None, 9),
        ("import threading; threading.Thread(target=os._exit, args=(8,)).start()\nwhile True: 1",
         "exit", 8, None),
    ],
)  # fmt: skip
async def test_a_death_is_told_with_its_cause_and_the_next_call_works(
    session: Session, code: str, kind: str, exit_code: int | None, signal: int | None
) -> None:
    await session.run("lost = 1")
    call = await session.run(f"import os\nprint('last words')\n{code}")
    assert (call.status, call.state_lost) == ("killed", True)
    assert call.cause is not None
    assert (call.cause.kind, call.cause.exit_code, call.cause.signal) == (kind, exit_code, signal)
    assert call.text.startswith("last words\n[killed: the kernel ")
    call = await session.run("'lost' in globals()")
    assert (call.text, call.execution_count) == ("=> False", 1)


@pytest.mark.parametrize("code", ["os._exit(7)", "os.abort()"])
async def test_a_line_that_was_begun_is_kept_by_pythons_own_ways_to_die(
    session: Session, code: str
) -> None:
    call = await session.run(f"import os\nprint('no line break', end='')\n{code}")
    assert call.text.startswith("no line break\n[killed: ")


async def test_a_loop_that_swallows_every_exception_is_ended(session: Session) -> None:
    await session.run("lost = 1")
    call = await session.run(
        "import time\nprint('begun')\nwhile True:\n    try:\n        while True: time.sleep(1)\n"
        "    except BaseException: pass",
        timeout_s=0.5,
    )
    assert (call.status, call.state_lost) == ("timeout", True)
    assert call.cause is not None
    assert call.cause.kind == "wall"
    assert call.text.startswith("begun\n[timeout: ")
    assert (await session.run("'lost' in globals()")).text == "=> False"


@pytest.mark.needs("cgroups")
async def test_allocating_on_although_memory_is_out_is_ended(
    coordinator: Coordinator, isolation: str
) -> None:
    if isolation == "none":
        pytest.skip("only an isolated session has a memory limit")
    async with coordinator.session(limits={"memory_bytes": 128 * MiB}) as session:
        call = await session.run(
            "print('begun', flush=True)\nkept = []\nwhile True:\n"
            "    try: kept.append(bytearray(1 << 20))\n    except MemoryError: pass"
        )
        assert (call.status, call.state_lost) == ("killed", True)
        assert call.cause is not None
        assert (call.cause.kind, call.cause.limit) == ("oom", 128 * MiB)
        assert call.text.startswith("begun\n")
        assert (await session.run("'kept' in globals()")).text == "=> False"


async def test_a_memory_error_of_python_itself_is_an_ordinary_error(session: Session) -> None:
    call = await session.run("x = bytearray(1 << 62)")
    assert call.text.endswith("MemoryError")
    assert (await session.run("1")).text == "=> 1"


STRIKE = """
import gc, os, signal
def strike(lines):
    if lines and lines[0].startswith('never'): os.kill(os.getpid(), signal.SIGINT)
    return lines
get_ipython().input_transformers_cleanup.append(strike)
"""


async def test_an_interrupt_before_the_code_starts_leaves_nothing_in_a_later_cell(
    session: Session,
) -> None:
    await session.run(STRIKE)
    call = await session.run("never = 1\nprint('not reached')")
    assert call.error is not None
    assert call.error.ename == "KeyboardInterrupt"
    assert "reached" not in call.output.text
    assert "awaited" not in call.text
    assert (await session.run("_ = gc.collect(); 'never' in globals()")).text == "=> False"
