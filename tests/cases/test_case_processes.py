"""Threads, children and C code write too: to the cell that started them, and nothing is lost."""

from __future__ import annotations

import pytest
from call_events import logged, wait_for_background

from replsvc.session import Session

RELEASE = "open('go', 'w').write('x\\n')"


async def test_a_thread_that_prints_after_its_cell_prints_to_that_cell(session: Session) -> None:
    first = await session.run(
        "import os, threading\nos.mkfifo('go')\n"
        "def late():\n    open('go').read(); print('late')\n"
        "thread = threading.Thread(target=late); thread.start(); print('now')"
    )
    assert first.text == "now"
    second = await session.run(f"n = {RELEASE}; thread.join(); print('second')")
    assert second.text == "second"
    assert await wait_for_background(session, first) == b"late\n"


async def test_a_background_child_that_keeps_stdout_holds_up_no_cell(session: Session) -> None:
    first = await session.run(
        "import os, subprocess\nos.mkfifo('go')\n"
        "child = subprocess.Popen('echo now; read x < go; echo late', shell=True)\n"
        "line = open('/dev/null').read()"
    )
    assert first.status == "ok"
    second = await session.run(f"n = {RELEASE}; child.wait(); print('second')")
    assert second.text == "second"
    events = session.log.follow(session.id, call_id=first.id)
    seen = b""
    async for page in events:
        seen += b"".join(event.blob or b"" for event in page)
        if seen.endswith(b"late\n"):
            break
    assert seen == b"now\nlate\n"


async def test_five_processes_print_to_the_cell(session: Session) -> None:
    call = await session.run(
        "import multiprocessing\n"
        "def work(n): print('child', n); print('error', n, file=__import__('sys').stderr)\n"
        "context = multiprocessing.get_context('fork')\n"
        "children = [context.Process(target=work, args=(n,)) for n in range(5)]\n"
        "for child in children: child.start()\n"
        "for child in children: child.join()\n"
        "[child.exitcode for child in children]"
    )
    assert call.text.endswith("=> [0, 0, 0, 0, 0]")
    for stream, word in (("stdout", "child"), ("stderr", "error")):
        lines = (await logged(session, call, stream)).decode().splitlines()
        assert sorted(lines) == [f"{word} {n}" for n in range(5)]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
async def test_a_pool_works_and_prints(session: Session, method: str) -> None:
    module = (
        "import sys\ndef square(n):\n"
        "    sys.stdout.write(f'at {n}\\n'); sys.stdout.flush()\n    return n * n\n"
    )
    await session.run(f"open('work.py', 'w').write({module!r})")
    call = await session.run(
        "import multiprocessing, work\n"
        f"with multiprocessing.get_context('{method}').Pool(2) as pool:\n"
        "    squares = pool.map(work.square, range(4), chunksize=1)\nsquares",
        timeout_s=60,
    )
    assert call.text.endswith("=> [0, 1, 4, 9]"), call.text
    lines = (await logged(session, call, "stdout")).decode().splitlines()
    assert sorted(lines) == [f"at {n}" for n in range(4)]


async def test_a_process_pool_executor_runs_functions_of_the_cell(session: Session) -> None:
    call = await session.run(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def square(n): return n * n\n"
        "with ProcessPoolExecutor(2, multiprocessing.get_context('fork')) as pool:\n"
        "    squares = list(pool.map(square, range(4)))\nsquares",
        timeout_s=60,
    )
    assert call.text == "=> [0, 1, 4, 9]"


async def test_what_c_code_prints_is_captured_in_its_own_cell(session: Session) -> None:
    call = await session.run(
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "n = libc.puts(b'whole line'); n = libc.printf(b'no line break')"
    )
    assert call.text == "whole line\nno line break"
    assert (await session.run("1")).text == "=> 1"


async def test_children_of_every_kind_write_to_the_cell(session: Session) -> None:
    call = await session.run(
        "import os, subprocess\n"
        "print('python')\nn = os.system('echo system')\n"
        "done = subprocess.run('echo run; echo error >&2', shell=True)\n!echo bang\n"
        "n = os.write(1, b'descriptor\\n')"
    )
    assert (await logged(session, call, "stdout")).decode().splitlines() == [
        *("python", "system", "run", "bang", "descriptor")
    ]
    assert await logged(session, call, "stderr") == b"error\n"


async def test_a_fork_without_exit_ends_with_its_cell_and_replies_nothing(
    session: Session,
) -> None:
    call = await session.run(
        "import os\npid = os.fork()\nprint('parent' if pid else 'child', flush=True)\n"
        "if pid: status = os.waitpid(pid, 0)[1]\n'value'"
    )
    assert call.text.endswith("\n=> 'value'")
    assert sorted(call.output.text.splitlines()) == ["child", "parent"]
    call = await session.run("status, pid == os.getpid()")
    assert (call.text, call.execution_count) == ("=> (0, False)", 2)


async def test_a_forked_child_that_fails_leaves_the_cell_alone(session: Session) -> None:
    call = await session.run(
        "import os\npid = os.fork()\nif not pid: raise ValueError('in the child')\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert call.status == "ok"
    assert call.text.endswith("ValueError: in the child\n=> 1")
