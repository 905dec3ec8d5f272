"""execution.md rules 4-6, 8: deadlines, interrupts, deaths, disconnects."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from patience import promptly
from replsvc.calls import CallRequest
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    InvalidInputError,
    ServiceStoppingError,
    SessionClosedError,
    SessionNotFoundError,
)
from replsvc.extension.contract import Extension
from replsvc.run import Run
from replsvc.session import Session

# Each blocks until something outside happens, so no test depends on how long anything takes.
BLOCK = "import os\nif not os.path.exists('f'): os.mkfifo('f')\nprint('ready', flush=True)\n"


async def wait_output(session: Session, run: Run, text: bytes = b"ready") -> None:
    seen = b""
    async for events in session.log.follow(session.id, call_id=run.id):
        seen += b"".join(event.blob or b"" for event in events)
        if text in seen:
            return


def kernel_pid(session: Session) -> int:
    """As the host sees it: an isolated kernel knows itself by another number."""
    current = session._slot.current
    assert current is not None
    assert current.kernel.info.pid is not None
    assert current.kernel.info.pid > 100
    return current.kernel.info.pid


async def start(session: Session, code: str, **fields: object) -> Run:
    run = await session.submit(CallRequest(input={"code": BLOCK + code}, **fields))
    await wait_output(session, run)
    return run


async def test_a_deadline_that_is_listened_to_keeps_the_names(session: Session) -> None:
    await session.run("x = 5")
    call = await session.run("print('begun')\nwhile True: pass", timeout_s=0.2)
    assert (call.status, call.state_lost) == ("timeout", False)
    assert call.cause is not None
    assert (call.cause.kind, call.cause.limit) == ("wall", 0.2)
    assert call.text.startswith("begun\n")
    assert "0.2 s" in call.text
    assert (await session.run("x")).text == "=> 5"


async def test_awaiting_code_is_interrupted_too(session: Session) -> None:
    call = await session.run("import asyncio; await asyncio.sleep(3600)", timeout_s=0.2)
    assert (call.status, call.state_lost) == ("timeout", False)


async def test_code_that_swallows_the_interrupt_is_ended_and_the_loss_is_said(
    session: Session,
) -> None:
    await session.run("x = 5")
    # An interrupt on a loop's own jump escapes CPython 3.11's try; one in a call does not.
    code = (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(1)\n"
        "    except BaseException: pass"
    )
    call = await session.run(code, timeout_s=0.2)
    assert (call.status, call.state_lost) == ("timeout", True)
    assert call.text == (
        "[timeout: the cell ran longer than 0.2 s; the session starts anew with its setup code, "
        "names defined in it are lost]"
    )
    assert (await session.run("'x' in globals()")).text == "=> False"


@pytest.mark.parametrize("isolation", ["none"])  # for isolated ones see test_isolation.py
@pytest.mark.parametrize(
    "deaf",
    [
        "import signal\n"
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "while True: pass",
        "sum(range(10**15))",  # native code, in which no Python handler runs
    ],
)
async def test_code_that_ignores_terminate_as_well_is_killed_with_all_it_started(
    coordinator: Coordinator, deaf: str
) -> None:
    ping = Extension(code="def ping(): return 'pong'")
    async with coordinator.session(extensions=[ping]) as session:
        child = (
            "import subprocess\n"
            "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)\n"
        )
        call = await session.run(child + deaf, timeout_s=0.5)
        assert (call.status, call.state_lost) == ("timeout", True)
        assert not Path(f"/proc/{int(call.output.text)}").exists()
        assert (await session.run("ping()")).text == "=> 'pong'"


async def test_the_clock_starts_with_the_cell_not_in_the_queue(session: Session) -> None:
    blocker = await start(session, "open('f').read()")
    queued = await session.submit(CallRequest(input={"code": "1"}, timeout_s=0.5))
    with trio.move_on_after(1):  # longer than the queued call's whole budget
        await queued.wait()
    assert queued.status == "queued"
    await session.interrupt()
    assert (await blocker.wait()).status == "interrupted"
    assert (await queued.wait()).status == "ok"


async def test_a_longer_timeout_than_the_operators_is_refused(session: Session) -> None:
    for asked in (121, "none", None):
        with pytest.raises(InvalidInputError, match="120"):
            await session.run("1", timeout_s=asked)


async def test_an_operator_may_lift_the_deadline(make_config: Callable[..., Config]) -> None:
    async with (
        Coordinator(make_config(timeout_s=None)) as other,
        other.session() as session,
    ):
        for none in ("none", None):
            assert (await session.run("1", timeout_s=none)).status == "ok"


async def test_an_interrupt_answers_and_keeps_names_and_queue(session: Session) -> None:
    await session.run("x = 1")
    running = await start(session, "open('f').read()")
    queued = await session.submit(CallRequest(input={"code": "x"}))
    with promptly():
        result = await session.interrupt()
    assert (result.delivered, result.still_running) == (True, False)
    call = await running.wait()
    assert (call.status, call.state_lost) == ("interrupted", False)
    assert call.error is not None
    assert call.error.ename == "KeyboardInterrupt"
    assert (await queued.wait()).text == "=> 1"


async def test_a_persons_interrupt_never_costs_the_names_unless_forced(session: Session) -> None:
    await session.run("x = 1")
    running = await start(
        session,
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
    )
    with promptly():
        result = await session.interrupt()
    assert (result.delivered, result.still_running) == (True, True)
    await session.interrupt(force=True)
    call = await running.wait()
    assert (call.status, call.state_lost) == ("interrupted", True)


async def test_an_interrupt_with_nothing_running_says_so(session: Session) -> None:
    result = await session.interrupt()
    assert (result.delivered, result.still_running) == (False, False)
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_code_that_handles_the_interrupt_ends_as_it_wants(session: Session) -> None:
    code = (
        "import os\nos.mkfifo('f')\n"
        "try:\n    print('ready', flush=True)\n    open('f').read()\n"
        "except KeyboardInterrupt:\n    pass\n'handled'"
    )
    running = await session.submit(CallRequest(input={"code": code}))
    await wait_output(session, running)
    await session.interrupt()
    call = await running.wait()
    assert (call.status, call.text) == ("ok", "ready\n=> 'handled'")


async def test_a_kernel_killed_from_outside_is_told_within_a_second(session: Session) -> None:
    pid = kernel_pid(session)
    running = await start(session, "open('f').read()")
    os.kill(pid, signal.SIGKILL)
    with promptly():
        call = await running.wait()
    assert (call.status, call.state_lost) == ("killed", True)
    assert call.cause is not None
    assert (call.cause.kind, call.cause.signal) == ("signal", 9)
    assert call.output.text == "ready\n"
    assert (await session.run("1 + 1")).text == "=> 2"


async def test_an_idle_kernel_that_dies_is_replaced_and_logged(session: Session) -> None:
    pid = kernel_pid(session)
    os.kill(pid, signal.SIGKILL)
    kinds: list[str] = []
    async for events in session.log.follow(session.id):
        kinds += [event.kind for event in events]
        if kinds[-2:] == ["kernel_died", "kernel_started"]:
            break
    call = await session.run("1 + 1")
    assert call.text == "=> 2"


async def test_cancelling_a_waiting_call_interrupts_it(session: Session) -> None:
    await session.run("x = 1")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await session.run(BLOCK + "open('f').read()", id="c1")

        nursery.start_soon(wait)
        seen = b""
        async for events in session.log.follow(session.id, call_id="c1"):
            seen += b"".join(event.blob or b"" for event in events)
            if b"ready" in seen:
                break
        nursery.cancel_scope.cancel()
    call = await session.find("c1")
    assert (call.status, call.state_lost) == ("cancelled", False)
    assert (await session.run("x")).text == "=> 1"


async def test_a_call_cancelled_in_the_queue_never_runs(session: Session) -> None:
    running = await start(session, "open('f').read()")
    queued = await session.submit(CallRequest(input={"code": "ran = True"}))
    queued.control.cancel()
    assert (await queued.wait()).status == "cancelled"
    await session.interrupt()
    await running.wait()
    assert (await session.run("'ran' in globals()")).text == "=> False"


@pytest.mark.parametrize(("detach", "policy"), [(True, "interrupt"), (False, "continue")])
async def test_a_call_that_may_goes_on_without_followers(
    coordinator: Coordinator, detach: bool, policy: str
) -> None:
    async with coordinator.session(limits={"disconnect_grace_s": 0}) as session:
        run = await start(
            session, "open('f').read(); 'went on'", detach=detach, on_disconnect=policy
        )
        async with session.following(run):
            pass
        await trio.to_thread.run_sync((session._parts.workspace / "f").write_text, "x")
        assert (await run.wait()).text.endswith("=> 'went on'")


async def test_an_attached_call_that_nobody_follows_is_interrupted(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(limits={"disconnect_grace_s": 0}) as session:
        run = await start(session, "open('f').read()")
        async with session.following(run), session.following(run):
            pass
        assert (await run.wait()).status == "cancelled"


async def test_who_comes_back_within_the_grace_finds_the_call_running(session: Session) -> None:
    run = await start(session, "open('f').read()")
    async with session.following(run):
        pass
    async with session.following(run):
        await trio.to_thread.run_sync((session._parts.workspace / "f").write_text, "x")
        assert (await run.wait()).text.endswith("=> 'x'")


async def test_a_queued_call_that_nobody_follows_never_runs(coordinator: Coordinator) -> None:
    async with coordinator.session(limits={"disconnect_grace_s": 0}) as session:
        running = await start(session, "open('f').read()")
        queued = await session.submit(CallRequest(input={"code": "ran = True"}))
        async with session.following(queued):
            pass
        assert (await queued.wait()).status == "cancelled"
        await session.interrupt()
        await running.wait()
        assert (await session.run("'ran' in globals()")).text == "=> False"


async def test_lifetime_call_keeps_nothing(coordinator: Coordinator) -> None:
    async with coordinator.session(lifetime="call") as session:
        call = await session.run("x = 1; import os; os.getpid()")
        other = await session.run("'x' in globals(), os.getpid() if 'os' in globals() else 0")
        assert other.text == "=> (False, 0)"
        assert (call.execution_count, other.execution_count) == (1, 1)
        assert not other.state_lost


async def test_lifetime_call_queues_each_on_its_own_kernel(coordinator: Coordinator) -> None:
    async with coordinator.session(lifetime="call") as session:
        runs = [
            await session.submit(CallRequest(input={"code": "n = globals().get('n', 0) + 1; n"}))
            for _ in range(3)
        ]
        assert [(await run.wait()).text for run in runs] == ["=> 1"] * 3


async def test_restart_gives_a_new_kernel_and_queued_calls_run_on_it(session: Session) -> None:
    await session.run("x = 1; open('kept', 'w').close()")
    running = await start(session, "open('f').read()")
    queued = await session.submit(CallRequest(input={"code": "'x' in globals()"}))
    await session.restart()
    call = await running.wait()
    assert (call.status, call.state_lost) == ("killed", True)
    assert (await queued.wait()).text == "=> False"
    assert (await session.run("os.path.exists('kept') if 'os' in globals() else 0")).text == "=> 0"
    assert (await session.run("import os; os.path.exists('kept')")).text == "=> True"


async def test_reset_gives_the_workspace_as_it_was_given(coordinator: Coordinator) -> None:
    async with coordinator.session(files={"a": {"text": "1"}}) as session:
        await session.run("open('a', 'w').write('2'); open('b', 'w').close()")
        await session.reset()
        code = "import os; sorted(os.listdir('.')), open('a').read()"
        assert (await session.run(code)).text == "=> (['a'], '1')"


async def test_reset_amid_calls_gives_those_behind_a_whole_workspace(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(files={"a": {"text": "1"}}) as session:
        for _ in range(3):
            running = await start(session, "open('b', 'w').close(); open('f').read()")
            look = "import os; os.path.samefile('.', os.environ['HOME']), sorted(os.listdir('.'))"
            queued = [await session.submit(CallRequest(input={"code": look})) for _ in range(2)]
            before = (await session.info()).generation
            await session.reset()
            assert (await running.wait()).status == "killed"
            assert [(await run.wait()).text for run in queued] == ["=> (True, ['a'])"] * 2
            assert (await session.info()).generation == before + 1
        assert await session.log.read(session.id, kinds=["kernel_died"]) == ()


async def test_restarts_at_once_all_succeed(session: Session) -> None:
    await session.run("x = 1")
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(session.restart)
        nursery.start_soon(session.reset)
        for _ in range(5):
            nursery.start_soon(session.run, "1")
    assert (await session.run("'x' in globals()")).text == "=> False"


async def test_an_idle_session_loses_its_kernel_and_gets_another(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session(limits={"idle_timeout_s": 0.2}) as session:
        await session.run("x = 1")
        async for events in session.log.follow(session.id):
            if any(event.data.get("reason") == "idle" for event in events):
                break
        assert session.state == "stopped"
        assert (await session.run("'x' in globals()")).text == "=> False"


async def test_closing_ends_running_and_queued_calls_with_results(
    coordinator: Coordinator,
) -> None:
    async with coordinator.session() as session:
        running = await start(session, "open('f').read()")
        queued = await session.submit(CallRequest(input={"code": "1"}))
    call = await running.wait()
    assert (call.status, call.cause and call.cause.kind) == ("killed", "service_stop")
    assert (await queued.wait()).status == "cancelled"
    with pytest.raises(SessionNotFoundError):
        coordinator.get(session.id)
    with pytest.raises((SessionClosedError, ServiceStoppingError)):
        await session.run("1")
