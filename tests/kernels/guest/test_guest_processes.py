"""Signals, forks, children, and how a guest ends."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

WAITS = [
    "import time; time.sleep(60)",
    "while True: pass",
    "import asyncio; await asyncio.sleep(60)",
    "import asyncio; await asyncio.sleep(0)\nwhile True: pass",
    "import asyncio; asyncio.run(asyncio.sleep(60))",
    "import asyncio; asyncio.get_event_loop().run_until_complete(asyncio.sleep(60))",
    "import trio; trio.run(trio.sleep, 60)",
    "import threading; threading.Event().wait()",
    "!sleep 60",
    "import subprocess; subprocess.run(['sleep', '60'])",
    "import sys\nwhile True: display(1)",
]


@pytest.mark.parametrize("code", WAITS)
def test_an_interrupt_reaches_whatever_a_cell_waits_in(guest: Any, code: str) -> None:
    guest.run("x = 1")
    ran = guest.interrupt(guest.start("print('on')\n" + code), b"on\n")
    assert ran.content["ename"] == "KeyboardInterrupt"
    assert guest.run("x + 1").value == "2"
    assert guest.run("import asyncio\nawait asyncio.sleep(0, 3)").value == "3"


def test_an_interrupt_reaches_a_task_that_computes_while_its_cell_awaits(guest: Any) -> None:
    started = guest.start(
        "import asyncio\nasync def busy():\n    print('on')\n    while True: pass\n"
        "task = asyncio.create_task(busy())\nawait asyncio.sleep(60)"
    )
    assert guest.interrupt(started, b"on\n").content["ename"] == "KeyboardInterrupt"
    assert guest.run("await asyncio.sleep(0, 3)").value == "3"


def test_interrupts_in_the_middle_of_messages_break_none(guest: Any) -> None:
    for _ in range(10):
        ran = guest.interrupt(guest.start("print('on')\nwhile True: display('x' * 99)"), b"on\n")
        assert ran.content["ename"] == "KeyboardInterrupt"
        assert all(m["content"]["data"] for m in ran.of("display_data"))


def test_interrupting_an_idle_kernel_does_nothing(guest: Any) -> None:
    guest.run("import signal, subprocess, threading")
    for _ in range(20):
        os.kill(guest.process.pid, signal.SIGINT)
    assert guest.run("1 + 1").value == "2"


def test_code_that_swallows_an_interrupt_goes_on_and_hears_the_next(guest: Any) -> None:
    started = guest.start(
        "import time\ntry:\n    print('on'); time.sleep(60)\n"
        "except KeyboardInterrupt: print('once more')\ntime.sleep(60)"
    )
    started[1].until(b"on\n")
    os.kill(guest.process.pid, signal.SIGINT)
    assert guest.interrupt(started, b"once more\n").content["ename"] == "KeyboardInterrupt"


def test_children_of_a_cell_do_not_ignore_interrupts(guest: Any) -> None:
    ran = guest.run(
        "import subprocess, sys\n"
        "code = 'import signal; print(signal.getsignal(2) is signal.default_int_handler)'\n"
        "subprocess.run([sys.executable, '-c', code]); None"
    )
    assert ran.out.whole() == b"True\n"


@pytest.mark.parametrize(
    ("ending", "status"),
    [("pass", 0), ("1/0", 1), ("sys.exit(7)", 7), ("exit()", 0), ("sys.exit('why')", 1)],
)
def test_a_forked_child_ends_with_its_cell_and_replies_nothing(
    guest: Any, ending: str, status: int
) -> None:
    started = guest.start(
        "import os, sys\n"
        "pid = os.fork()\n"
        f"if pid == 0:\n    print('child'); {ending}\n"
        "else:\n    seen = os.waitpid(pid, 0)[1] >> 8"
    )
    ran = guest.finish(started)
    assert ran.out.whole() == b"child\n"
    assert guest.run("seen").value == str(status)
    assert not guest.shell.poll(0)


def test_a_child_forked_in_an_awaiting_cell_may_await(guest: Any) -> None:
    ran = guest.run(
        "import asyncio, os\nawait asyncio.sleep(0)\npid = os.fork()\nawait asyncio.sleep(0.01)\n"
        "print('child' if pid == 0 else 'parent')\n"
        "if pid: print(os.waitpid(pid, 0)[1])"
    )
    assert sorted(ran.out.whole().split()) == [b"0", b"child", b"parent"]
    assert guest.run("await asyncio.sleep(0, 5)").value == "5"


def test_text_that_is_held_back_is_not_written_twice_by_a_child(guest: Any) -> None:
    ran = guest.run("import os\nprint('once', end='')\nif os.fork(): os.wait()")
    assert ran.out.whole() == b"once"


def test_a_display_in_a_forked_child_publishes_nothing(guest: Any) -> None:
    ran = guest.run("import os\npid = os.fork()\nif pid: os.wait()\nelse: display('child')")
    assert ran.of("display_data") == []
    assert guest.run("1").value == "1"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works(guest: Any, method: str) -> None:
    (guest.workspace / "work.py").write_text(
        "def square(n):\n    print('on', n, flush=True)\n    return n * n\n"
    )
    ran = guest.run(
        "import multiprocessing, work\n"
        f"with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "    done = pool.map(work.square, [2, 3])\ndone"
    )
    assert ran.value == "[4, 9]"
    assert ran.out.until(b"on 2")
    assert ran.out.until(b"on 3")


def test_terminating_a_forked_worker_runs_none_of_the_kernels_exit_handlers(guest: Any) -> None:
    ran = guest.run(
        "import atexit, multiprocessing, time\n"
        "atexit.register(print, 'exit handler', flush=True)\n"
        "p = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "p.start(); p.terminate(); p.join(); p.exitcode"
    )
    assert ran.value == "-15"
    assert b"exit handler" not in ran.out.data


def test_children_hold_none_of_the_hosts_descriptors(guest: Any) -> None:
    ran = guest.run(
        "import subprocess, sys\n"
        "code = '''import os\n"
        'for n in os.listdir("/proc/self/fd"):\n'
        '    try: name = os.readlink(f"/proc/self/fd/{n}")\n'
        "    except OSError: continue\n"
        "    if int(n) > 2: print(name)'''\n"
        "subprocess.run([sys.executable, '-c', code]); None"
    )
    assert b"socket:" not in ran.out.whole()
    assert b"pipe:" not in ran.out.data


def test_a_polite_shutdown_runs_exit_handlers(guest: Any) -> None:
    (guest.workspace / "note").touch()
    guest.run("import atexit\natexit.register(lambda: open('note', 'w').write('ran'))")
    guest.request("shutdown_request", {"restart": False}, channel=guest.control)
    assert guest.reply(guest.control)["content"] == {"status": "ok", "restart": False}
    assert guest.process.wait() == 0
    assert (guest.workspace / "note").read_text() == "ran"


@pytest.mark.parametrize("code", ["1", "print('on')\nwhile True: pass"])
def test_sigterm_runs_exit_handlers_and_ends_by_the_signal(guest: Any, code: str) -> None:
    guest.run("import atexit\natexit.register(lambda: open('note', 'w').write('ran'))")
    started = guest.start(code)
    if "on" in code:
        started[1].until(b"on\n")
    else:
        guest.finish(started)
    guest.process.terminate()
    assert guest.process.wait() == -signal.SIGTERM
    assert (guest.workspace / "note").read_text() == "ran"


def test_a_shutdown_ends_a_busy_kernel_too(guest: Any) -> None:
    started = guest.start("print('on')\nwhile True: pass")
    started[1].until(b"on\n")
    guest.request("shutdown_request", {"restart": False}, channel=guest.control)
    assert guest.process.wait() == -signal.SIGTERM
    assert started[1].whole() == b"on\n"


@pytest.mark.parametrize("code", ["1", "print('on')\nwhile True: pass"])
def test_a_guest_ends_when_its_host_is_gone(guest: Any, code: str) -> None:
    started = guest.start(code)
    if "on" in code:
        started[1].until(b"on\n")
    else:
        guest.finish(started)
    guest.host.close()
    assert guest.process.wait() == 1


def test_the_last_bytes_of_a_kernel_that_dies_are_kept(guest: Any) -> None:
    _, out, err = guest.start("import os, sys\nprint('last', file=sys.stderr)\nos.abort()")
    assert guest.process.wait() == -signal.SIGABRT
    assert (out.whole(), err.whole()) == (b"", b"last\n")


def test_every_client_is_welcomed(guest: Any) -> None:
    import zmq

    second = guest._connect(zmq.SUB, guest.iopub.LAST_ENDPOINT.decode().partition("//")[2])
    second.subscribe(b"")
    assert second.poll(10_000)
    assert guest.session.recv(second)[1]["msg_type"] == "iopub_welcome"
    second.close()
