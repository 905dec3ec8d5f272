"""What every kernel does, whatever it is: run on the fake and on each real backend."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kernel_rigs import fork_servers, isolated, opened, seen_from_here

import kernel_python
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.provisioner import ProvisionerBackend
from replsvc_kernels.backends.stock import StockBackend
from replsvc_kernels.kernel import Cell, Kernel, KernelDied, KernelError, LaunchSpec
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Exit,
    InputRequest,
    InputWithdrawn,
    Output,
    SetupCode,
    Stream,
)
from replsvc_kernels.testing import Ask, Background, Die, Fail, FakeBackend, FakeKernel, Hang, Names

MEGABYTES = 10
PRINT_MANY = f"for i in range({MEGABYTES * 10}): print('x' * 99_999)"
ENDLESS = "while True: print('x' * 99)"
BUSY = "print('on my way', flush=True)\nwhile True: pass"
OUTPUTS = "print('out'); 1 + 1"
BOTH_STREAMS = (
    "import sys\nprint('to stdout', flush=True)\nprint('to stderr', file=sys.stderr, flush=True)"
)
RAISES = "print('before'); 1 / 0"
DISPLAYS = (
    "from IPython.display import display, clear_output\n"
    "print('a'); display({'text/plain': '1'}, raw=True); print('b')\n"
    "display({'text/plain': '2'}, raw=True); print('c'); clear_output(wait=True)\n"
    "h = display({'text/plain': '3'}, raw=True, display_id='it')\n"
    "h.update({'text/plain': '4'}, raw=True)"
)
LAST_WORDS = (
    "import os, sys\nprint('last words'); sys.stdout.flush()\n"
    "from IPython.display import display; display({'text/plain': 'seen'}, raw=True)\n"
    "import threading; threading.Event().wait(0.3)\nos._exit(3)"
)
ASKS = "print('first'); name = input('name? '); print('hello', name)"
ASKS_SECRETLY = "import getpass; print(len(getpass.getpass('key? ')))"
ASKS_TWICE = (
    "try: input('once? ')\nexcept KeyboardInterrupt: print('interrupted')\nprint(input('again? '))"
)
LATER = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'print(input())'], stdin=subprocess.PIPE)"
)
LET_IT = "child.communicate(b'from behind\\n'); None"


def endless() -> Iterable[Stream]:
    while True:
        yield Stream("stdout", b"x" * 99 + b"\n")


def script(code: str) -> Iterable[Any]:
    """The same cells, as the fake plays them."""
    result = {"text/plain": "2"}
    steps: dict[str, Iterable[Any]] = {
        OUTPUTS: [Stream("stdout", b"out\n"), ExecuteResult(result)],
        "1 + 1": [ExecuteResult(result)],
        "pass": [],
        BOTH_STREAMS: [Stream("stdout", b"to stdout\n"), Stream("stderr", b"to stderr\n")],
        PRINT_MANY: [Stream("stdout", b"x" * 99_999 + b"\n")] * (MEGABYTES * 10),
        RAISES: [
            Stream("stdout", b"before\n"),
            Fail("ZeroDivisionError", "division by zero", ("",)),
        ],
        DISPLAYS: [
            Stream("stdout", b"a\n"),
            DisplayData({"text/plain": "1"}),
            Stream("stdout", b"b\n"),
            DisplayData({"text/plain": "2"}),
            Stream("stdout", b"c\n"),
            ClearOutput(wait=True),
            DisplayData({"text/plain": "3"}, display_id="it"),
            DisplayData({"text/plain": "4"}, display_id="it", update=True),
        ],
        BUSY: [Stream("stdout", b"on my way\n"), Hang()],
        LAST_WORDS: [
            Stream("stdout", b"last words\n"),
            DisplayData({"text/plain": "seen"}),
            Die(Exit(code=3)),
        ],
        LATER: [Background(b"from behind\n")],
        LET_IT: [],
        ASKS: [
            Stream("stdout", b"first\n"),
            Ask("name? ", then=lambda name: [Stream("stdout", f"hello {name}\n".encode())]),
        ],
        ASKS_SECRETLY: [
            Ask("key? ", True, lambda key: [Stream("stdout", b"%d\n" % len(key))]),
        ],
        "print('me')": [Stream("stdout", b"me\n")],
        "print('you')": [Stream("stdout", b"you\n")],
    }
    return endless() if code == ENDLESS else steps[code]


def setup_script(name: str) -> Iterable[Any]:
    return {
        "good": [Stream("stdout", b"setting up\n"), Names(("answer",))],
        "bad": [Fail("ZeroDivisionError", "division by zero")],
        "deadly": [Stream("stdout", b"farewell\n"), Die(Exit(code=4))],
    }[name]


@dataclass
class Rig:
    """One backend under test; `spec` gives what to launch, once for each kernel."""

    backend: Backend
    spec: Callable[[], LaunchSpec]
    runtime_dir: Path

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Kernel]:
        async with opened(self.backend, self.spec()) as kernel:
            yield kernel


MAKERS: dict[str, Callable[[str], Backend]] = {
    "fake": lambda _: FakeBackend(script, setup=setup_script),
    "process": ProcessBackend,
    "provisioner": lambda directory: ProvisionerBackend("stock", directory),
    "stock": StockBackend,
}


@asynccontextmanager
async def rigged(name: str, spec: LaunchSpec, runtime_dir: Path) -> AsyncIterator[Rig]:
    if name != "forkserver":
        yield Rig(MAKERS[name](str(runtime_dir)), lambda: spec, runtime_dir)
        return
    async with fork_servers() as servers:
        names = (f"s{number}" for number in count())
        backend = servers.backend(kernel_python.path)
        yield Rig(backend, lambda: isolated(servers, next(names)), runtime_dir)


def rig_of(*names: str) -> Any:
    marks = {"forkserver": pytest.mark.needs("userns", "pidns", "seccomp")}
    params = [pytest.param(name, marks=marks.get(name, ())) for name in names]

    @pytest.fixture(params=params)
    async def fixture(
        request: pytest.FixtureRequest, spec: LaunchSpec, runtime_dir: Path, jupyter_path: Path
    ) -> AsyncIterator[Rig]:
        async with rigged(request.param, spec, runtime_dir) as rig:
            yield rig

    return fixture


rig = rig_of(*MAKERS, "forkserver")
guest_rig = rig_of("fake", "process", "forkserver")
awaiting_rig = rig_of("process", "forkserver")
bare_rig = rig_of("provisioner", "stock")
rig_with_code = rig_of("process", "provisioner", "forkserver")


async def take(cell: Cell) -> list[Output]:
    return [output async for output in cell]


async def take_into(seen: list[Output], cell: Cell) -> None:
    async for output in cell:
        seen.append(output)  # noqa: PERF401 - what came before an error is wanted, too


def kill_from_outside(kernel: Kernel) -> None:
    if isinstance(kernel, FakeKernel):
        kernel.die(Exit(signal=signal.SIGKILL))
    else:
        assert kernel.info.pid is not None
        os.kill(kernel.info.pid, signal.SIGKILL)


async def run(kernel: Kernel, code: str, cell: str = "c") -> tuple[list[Output], Cell]:
    async with kernel.execute(code, cell=cell) as running:
        return await take(running), running


def printed(outputs: Iterable[Output], name: str = "stdout") -> bytes:
    return b"".join(
        output.data for output in outputs if isinstance(output, Stream) and output.name == name
    )


async def test_a_cell_yields_its_outputs_then_one_reply(rig: Rig) -> None:
    async with rig.open() as kernel:
        async with kernel.execute(OUTPUTS, cell="first") as cell:
            assert cell.reply is None
            outputs = await take(cell)
            assert cell.reply is not None
            assert (cell.reply.status, cell.reply.execution_count) == ("ok", 1)
        assert outputs[0] == Stream("stdout", b"out\n", "first")
        assert isinstance(outputs[1], ExecuteResult)
        assert (outputs[1].data["text/plain"], outputs[1].execution_count) == ("2", 1)
        assert len(outputs) == 2
        await cell.wait_started()


async def test_execution_counts_are_counted_by_the_kernel(rig: Rig) -> None:
    async with rig.open() as kernel:
        counts = [(await run(kernel, "pass"))[1].reply for _ in range(3)]
        assert [reply and reply.execution_count for reply in counts] == [1, 2, 3]


async def test_the_two_streams_stay_apart(rig: Rig) -> None:
    async with rig.open() as kernel:
        outputs, _ = await run(kernel, BOTH_STREAMS)
        assert printed(outputs, "stdout") == b"to stdout\n"
        assert printed(outputs, "stderr") == b"to stderr\n"


async def test_every_byte_of_ten_megabytes_arrives(rig: Rig) -> None:
    async with rig.open() as kernel:
        outputs, cell = await run(kernel, PRINT_MANY)
        assert printed(outputs) == (b"x" * 99_999 + b"\n") * (MEGABYTES * 10)
        assert cell.reply is not None
        assert cell.reply.status == "ok"


async def test_user_code_that_raises_is_a_reply_with_what_came_before_it(rig: Rig) -> None:
    async with rig.open() as kernel:
        outputs, cell = await run(kernel, RAISES)
        assert printed(outputs) == b"before\n"
        assert cell.reply is not None
        assert cell.reply.status == "error"
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "ZeroDivisionError"
        assert cell.reply.failure.evalue == "division by zero"
        assert cell.reply.failure.traceback
        # and it is no reason to refuse the next one
        assert (await run(kernel, "1 + 1"))[1].reply is not None


async def test_displays_stand_where_they_were_made(rig: Rig) -> None:
    async with rig.open() as kernel:
        outputs, _ = await run(kernel, DISPLAYS)
        told = [
            output.data.decode() if isinstance(output, Stream)
            else (output.data["text/plain"], output.display_id, output.update)
            if isinstance(output, DisplayData)
            else output
            for output in outputs
        ]  # fmt: skip
        assert told == [
            "a\n",
            ("1", None, False),
            "b\n",
            ("2", None, False),
            "c\n",
            ClearOutput(wait=True),
            ("3", "it", False),
            ("4", "it", True),
        ]


async def test_an_interrupt_ends_a_busy_loop_and_the_kernel_lives(rig: Rig) -> None:
    async with rig.open() as kernel:
        async with kernel.execute(BUSY, cell="busy") as cell:
            first = await anext(aiter(cell))
            assert first == Stream("stdout", b"on my way\n", "busy")
            assert await kernel.interrupt()
            await take(cell)
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "KeyboardInterrupt"
        assert kernel.exit is None
        outputs, _ = await run(kernel, "1 + 1")
        assert isinstance(outputs[0], ExecuteResult)


async def test_an_interrupt_when_idle_does_nothing(rig: Rig) -> None:
    async with rig.open() as kernel:
        await run(kernel, "pass")
        assert await kernel.interrupt()
        outputs, cell = await run(kernel, OUTPUTS)
        assert printed(outputs) == b"out\n"
        assert cell.reply is not None
        assert cell.reply.status == "ok"


async def test_a_kernel_killed_from_outside_says_so_after_the_last_output(rig: Rig) -> None:
    async with rig.open() as kernel:
        seen: list[Output] = []
        async with kernel.execute(BUSY, cell="c") as cell:
            seen.append(await anext(aiter(cell)))
            kill_from_outside(kernel)
            with pytest.raises(KernelDied) as death:
                await take_into(seen, cell)
        assert printed(seen) == b"on my way\n"
        assert cell.reply is None
        assert death.value.exit == Exit(signal=signal.SIGKILL)
        assert kernel.exit == await kernel.wait_exited() == death.value.exit
        with pytest.raises(KernelDied):
            await run(kernel, "1 + 1")
        assert not await kernel.interrupt()


async def test_a_kernel_that_exits_keeps_its_last_words_and_its_code(rig: Rig) -> None:
    async with rig.open() as kernel:
        seen: list[Output] = []
        async with kernel.execute(LAST_WORDS, cell="c") as cell:
            with pytest.raises(KernelDied) as death:
                await take_into(seen, cell)
        assert death.value.exit == Exit(code=3)
        assert printed(seen) == b"last words\n"
        assert [output.data for output in seen if isinstance(output, DisplayData)] == [
            {"text/plain": "seen"}
        ]


async def test_terminate_ends_a_kernel_by_sigterm(rig: Rig) -> None:
    async with rig.open() as kernel:
        async with kernel.execute(BUSY, cell="c") as cell:
            await anext(aiter(cell))
            await kernel.terminate()
            with pytest.raises(KernelDied) as death:
                await take(cell)
        assert death.value.exit == Exit(signal=signal.SIGTERM)


async def test_kill_ends_a_kernel_now(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(BUSY, cell="c") as cell:
        await anext(aiter(cell))
        await kernel.kill()
        assert kernel.exit == Exit(signal=signal.SIGKILL)
        with pytest.raises(KernelDied):
            await take(cell)


async def test_a_cancelled_cell_leaves_the_kernel_usable_after_an_interrupt(rig: Rig) -> None:
    async with rig.open() as kernel:
        with trio.CancelScope() as scope:
            async with kernel.execute(BUSY, cell="c") as cell:
                async for _ in cell:
                    scope.cancel()
        assert scope.cancelled_caught
        assert await kernel.interrupt()
        outputs, following = await run(kernel, "1 + 1")
        assert isinstance(outputs[-1], ExecuteResult)
        assert following.reply is not None
        assert following.reply.execution_count == 2


async def ask(cell: Cell, *answers: str | None, why: str = "") -> list[Output]:
    """Take all that a cell says, answering one question after the other."""
    left, seen = list(answers), list[Output]()
    async for output in cell:
        seen.append(output)
        if isinstance(output, InputRequest):
            assert await cell.answer(output, left.pop(0), why=why)
    assert not left
    return seen


async def test_a_cell_asks_and_goes_on_with_the_answer(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(ASKS, cell="c", stdin=True) as cell:
        seen = await ask(cell, "Ada Lovelace é")
        requests = [output for output in seen if isinstance(output, InputRequest)]
        assert requests == [InputRequest("name? ", password=False, number=1)]
        assert printed(seen) == "first\nhello Ada Lovelace é\n".encode()
        assert cell.reply is not None
        assert cell.reply.status == "ok"


async def test_what_was_printed_before_a_question_comes_before_it(guest_rig: Rig) -> None:
    async with guest_rig.open() as kernel, kernel.execute(ASKS, cell="c", stdin=True) as cell:
        seen = await ask(cell, "x")
        (place,) = (at for at, output in enumerate(seen) if isinstance(output, InputRequest))
        assert printed(seen[:place]) == b"first\n"


async def test_a_secret_is_asked_for_as_one(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(ASKS_SECRETLY, cell="c", stdin=True) as cell:
        seen = await ask(cell, "12345")
        requests = [output for output in seen if isinstance(output, InputRequest)]
        assert requests == [InputRequest("key? ", password=True, number=1)]
        assert printed(seen) == b"5\n"


async def test_asking_where_nobody_answers_is_an_error_at_once(rig: Rig) -> None:
    async with rig.open() as kernel:
        outputs, cell = await run(kernel, ASKS)
        assert printed(outputs) == b"first\n"
        assert not any(isinstance(output, InputRequest) for output in outputs)
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "StdinNotImplementedError"


async def test_the_end_of_input_is_an_eof_error(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(ASKS, cell="c", stdin=True) as cell:
        await ask(cell, None, why="nobody is there")
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "EOFError"
        if kernel.info.has_guest:
            assert cell.reply.failure.evalue == "nobody is there"


async def test_an_interrupt_ends_a_question_and_says_so(rig: Rig) -> None:
    async with rig.open() as kernel:
        async with kernel.execute(ASKS, cell="c", stdin=True) as cell:
            outputs = aiter(cell)
            asked = await anext(outputs)
            while not isinstance(asked, InputRequest):
                asked = await anext(outputs)
            assert await kernel.interrupt()
            # A kernel without our guest prints and asks over different sockets.
            rest = [output async for output in outputs if not isinstance(output, Stream)]
            assert rest == [InputWithdrawn()]
            assert not await cell.answer(asked, "too late")
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "KeyboardInterrupt"
        assert (await run(kernel, "1 + 1"))[0]


async def test_a_question_is_answered_once(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(ASKS, cell="c", stdin=True) as cell:
        async for output in cell:
            if isinstance(output, InputRequest):
                assert await cell.answer(output, "first")
                assert not await cell.answer(output, "second")
        assert cell.reply is not None
        assert cell.reply.status == "ok"


async def to_the_end(outputs: AsyncIterator[Output]) -> None:
    async for _ in outputs:
        pass


async def test_a_kernel_killed_while_it_waits_for_an_answer_says_so(rig: Rig) -> None:
    async with rig.open() as kernel, kernel.execute(ASKS, cell="c", stdin=True) as cell:
        outputs = aiter(cell)
        asked = await anext(outputs)
        while not isinstance(asked, InputRequest):
            asked = await anext(outputs)
        kill_from_outside(kernel)
        # What it had said before may come first: it travels by another way than the question.
        with pytest.raises(KernelDied):
            await to_the_end(outputs)
        assert not await cell.answer(asked, "too late")


async def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_a_later(
    rig_with_code: Rig,
) -> None:
    async with rig_with_code.open() as kernel:
        requests, printed_ = [], []
        async with kernel.execute(ASKS_TWICE, cell="c", stdin=True) as cell:
            async for output in cell:
                if isinstance(output, Stream):
                    printed_.append(output)
                if isinstance(output, InputRequest):
                    requests.append(output)
                    if len(requests) == 1:
                        await kernel.interrupt()
                    else:
                        assert not await cell.answer(requests[0], "old")
                        assert await cell.answer(requests[1], "new")
        assert [request.prompt for request in requests] == ["once? ", "again? "]
        assert printed(printed_) == b"interrupted\nnew\n"


async def test_two_kernels_do_not_see_each_other(rig: Rig) -> None:
    async with rig.open() as one, rig.open() as two:
        seen: dict[str, bytes] = {}

        async def speak(kernel: Kernel, word: str) -> None:
            seen[word] = printed((await run(kernel, f"print('{word}')"))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak, one, "me")
            nursery.start_soon(speak, two, "you")
        assert seen == {"me": b"me\n", "you": b"you\n"}


async def test_a_consumer_that_does_not_read_makes_the_writer_wait(guest_rig: Rig) -> None:
    async with guest_rig.open() as kernel, kernel.execute(ENDLESS, cell="c") as cell:
        await cell.wait_started()
        outputs = aiter(cell)
        first = await anext(outputs)
        # Without a reader in between, this much is ahead at most; nothing more comes while we wait.
        await trio.testing.wait_all_tasks_blocked(0.3)
        await kernel.interrupt()
        ahead = printed([first, *[output async for output in outputs]])
        assert 0 < len(ahead) < 8 * 1024 * 1024
        assert set(ahead.splitlines()[:-1]) == {b"x" * 99}
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "KeyboardInterrupt"


async def test_what_a_child_writes_later_is_background_of_its_cell(guest_rig: Rig) -> None:
    async with guest_rig.open() as kernel:
        outputs, _ = await run(kernel, LATER, cell="parent")
        assert printed(outputs) == b""
        outputs, _ = await run(kernel, LET_IT, cell="other")
        assert printed(outputs) == b""
        late = [await kernel.background.receive()]
        while not printed(late).endswith(b"\n"):
            late.append(await kernel.background.receive())
        assert printed(late) == b"from behind\n"
        assert {(chunk.cell, chunk.background) for chunk in late} == {("parent", True)}


async def test_setup_reports_names_and_output_and_is_no_cell(guest_rig: Rig) -> None:
    code = SetupCode("good", "answer = 42\nprint('setting up')\n_hidden = 1", "/x/ext.py")
    async with guest_rig.open() as kernel:
        report = await kernel.setup(code)
        assert (report.name, report.names, report.output) == ("good", ("answer",), b"setting up\n")
        assert report.failure is None
        assert report.duration_s >= 0
        assert (await run(kernel, "pass"))[1].reply.execution_count == 1


async def test_setup_that_raises_is_in_its_report(guest_rig: Rig) -> None:
    async with guest_rig.open() as kernel:
        report = await kernel.setup(SetupCode("bad", "1 / 0", "/x/ext.py"))
        assert report.failure is not None
        assert report.failure.ename == "ZeroDivisionError"
        assert (await run(kernel, "1 + 1"))[0]


async def test_setup_that_ends_the_process_says_what_it_printed(guest_rig: Rig) -> None:
    source = "import os\nprint('farewell', flush=True)\nos._exit(4)"
    async with guest_rig.open() as kernel:
        with pytest.raises(KernelDied) as death:
            await kernel.setup(SetupCode("deadly", source, "/x/ext.py"))
        assert (death.value.exit, death.value.printed) == (Exit(code=4), b"farewell\n")


async def test_a_kernel_without_guest_refuses_setup_and_cell_variables(bare_rig: Rig) -> None:
    async with bare_rig.open() as kernel:
        assert not kernel.info.has_guest
        with pytest.raises(KernelError, match="no guest"):
            await kernel.setup(SetupCode("good", "", "/x/ext.py"))
        with pytest.raises(KernelError, match="no guest"):
            async with kernel.execute("1 + 1", cell="c", env={"A": "b"}):
                pass


def open_descriptors() -> set[tuple[str, str]]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((path.name, str(path.readlink())))
    return {(number, target) for number, target in found if not target.startswith("/proc/")}


async def test_closing_leaves_no_process_directory_or_descriptor(rig: Rig, watched: Any) -> None:
    async with rig.open():
        pass  # what is opened once a process (the zmq context) is open now
    before = open_descriptors()
    async with rig.open() as kernel:
        if kernel.info.pid is not None:
            watched.add(kernel.info.pid)
            # One that has left the session, the group and its parent.
            outputs, _ = await run(
                kernel,
                "import subprocess\n"
                "print(subprocess.run('setsid sleep 1000 >/dev/null 2>&1 & echo $!', shell=True,"
                " capture_output=True, text=True).stdout)",
            )
            watched.add(seen_from_here(kernel.info.pid, int(printed(outputs))))
    assert watched.alive() == []
    watched.close()
    assert list(rig.runtime_dir.iterdir()) == []
    assert open_descriptors() == before


async def test_the_first_step_of_the_ladder_ends_a_cell_that_awaits(awaiting_rig: Rig) -> None:
    """A stock kernel sleeps on."""
    async with awaiting_rig.open() as kernel:
        await run(kernel, "kept = 7")
        code = "import asyncio; print('on my way', flush=True)\nawait asyncio.sleep(3600)"
        async with kernel.execute(code, cell="c") as cell:
            async for output in cell:
                if isinstance(output, Stream):
                    assert await kernel.interrupt()
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "KeyboardInterrupt"
        assert kernel.exit is None
        outputs, _ = await run(kernel, "print(kept)")
        assert printed(outputs) == b"7\n"
