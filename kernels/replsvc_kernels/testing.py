"""`FakeKernel`: a kernel that follows a script, for tests of what stands above kernels.

    backend = FakeBackend({"1+1": [ExecuteResult({"text/plain": "2"})], "loop": [Hang()]})
    async with backend.open(LaunchSpec("/anywhere")) as kernel: ...

It keeps the contract of a real kernel (tests/kernels/test_contract.py runs on both) without
process, socket or clock: it waits for events only, so it runs under trio's `MockClock`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from signal import SIGKILL, SIGTERM
from typing import Any

import trio

from replsvc_kernels._tools import error_of, pack_result
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import (
    Cell,
    Kernel,
    KernelDied,
    KernelError,
    KernelInfo,
    LaunchSpec,
    LaunchTimeout,
    ProtocolViolation,
)
from replsvc_kernels.messages import (
    BackgroundOutput,
    DisplayData,
    ExecuteResult,
    Exit,
    Failure,
    InputRequest,
    InputWithdrawn,
    Output,
    Reply,
    SetupCode,
    SetupReport,
    Stream,
    ToolRequest,
    ToolSpec,
    ToolWithdrawn,
)

OPEN_OUTPUTS = 8
"""How many outputs a cell may be ahead of its consumer before it blocks."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Wait until the cell is interrupted; SIGTERM ends the kernel."""


@dataclass(frozen=True, slots=True)
class HangHard:
    """Ignore interrupts, and with `terminates=False` SIGTERM too; `kill` always ends it."""

    terminates: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on when the test sets `event`; an interrupt ends the wait as it ends `Hang`."""

    event: trio.Event


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for a line and wait for it; then do what `then` makes of it.

    The end of input raises `EOFError`, an interrupt ends it as it ends `Hang`.
    """

    prompt: str = ""
    password: bool = False
    then: Callable[[str], Iterable[Step]] = lambda _: ()


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call a tool and wait for its result; then do what `then` makes of it.

    An error raises `ToolError`, and an interrupt ends the wait as it ends `Hang`. With `background`
    the steps go on at once, and nothing is made of the result.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    then: Callable[[Any], Iterable[Step]] = lambda _: ()
    background: bool = False


@dataclass(frozen=True, slots=True)
class Die:
    """The process ends here, after what was written so far."""

    exit: Exit = Exit(code=1)  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Fail:
    """User code raises: the steps after it don't run."""

    ename: str
    evalue: str = ""
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Violate:
    """The kernel breaks the protocol, and is killed for it."""

    reason: str = "a forged message"


@dataclass(frozen=True, slots=True)
class Background:
    """Bytes that a process of this cell writes after the cell's reply."""

    data: bytes
    name: str = "stdout"


@dataclass(frozen=True, slots=True)
class Names:
    """Setup code only: the public names that it added."""

    names: tuple[str, ...]


Step = Output | Hang | HangHard | Wait | Ask | CallTool | Die | Fail | Violate | Background | Names
Script = Mapping[str, Iterable[Step]] | Callable[[str], Iterable[Step]]
"""Code to its steps. Code that a mapping does not have fails with `UnscriptedCode`.

A callable may be a generator function: each step is asked for when the one before it is done.
"""


@dataclass(frozen=True, slots=True)
class Executed:
    """What `FakeKernel.execute` was asked to run."""

    code: str
    cell: str
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bool = False
    tools: tuple[ToolSpec, ...] = ()


def _steps(script: Script, key: str) -> Iterable[Step]:
    if callable(script):
        return script(key)
    return script.get(key, [Fail("UnscriptedCode", f"the fake's script has no {key!r}")])


class _FakeCall:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Any = None
        self.failed = False


class _FakeCell(Cell):
    def __init__(self, stdin: bool, tools: Sequence[ToolSpec]) -> None:
        self.stdin, self.tools = stdin, frozenset(tool.name for tool in tools)
        self.calls: dict[int, _FakeCall] = {}
        self._called = 0
        self.questions = 0
        self._asked: trio.Event | None = None
        self.text: str | None = None
        self.why = ""
        self._started = trio.Event()
        self.failure: KernelError | None = None
        self.send, self._receive = trio.open_memory_channel[Output](OPEN_OUTPUTS)

    def begin(self) -> None:
        self._started.set()

    async def wait_started(self) -> None:
        await self._started.wait()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            if self.failure is not None:
                raise self.failure from None
            raise StopAsyncIteration from None

    async def answer(self, request: InputRequest, text: str | None, *, why: str = "") -> bool:
        """See `Cell.answer`."""
        await trio.lowlevel.checkpoint()
        if self._asked is None or request.number != self.questions:
            return False
        self.text, self.why = text, why
        asked, self._asked = self._asked, None
        asked.set()
        return True

    async def answer_tool(
        self,
        id_: int,
        /,
        *,
        result: object = None,
        error: Mapping[str, str] | None = None,
    ) -> bool:
        """See `Cell.answer_tool`."""
        await trio.lowlevel.checkpoint()
        if id_ not in self.calls:
            return False
        # as the code would get them
        answer = error_of(error) if error is not None else json.loads(pack_result(result))
        call = self.calls.pop(id_)
        call.answer, call.failed = answer, error is not None
        call.done.set()
        return True

    def call(self, step: CallTool) -> tuple[ToolRequest, _FakeCall]:
        """The next request, and where its answer will be."""
        self._called += 1
        call = self.calls[self._called] = _FakeCall()
        return ToolRequest(self._called, step.name, step.arguments, step.background), call

    def ask(self, step: Ask) -> tuple[InputRequest, trio.Event]:
        """The next question, and when it is answered; then `text` and `why` are the answer."""
        self.questions += 1
        self._asked = trio.Event()
        return InputRequest(step.prompt, step.password, self.questions), self._asked

    def withdraw(self) -> None:
        """The question is off."""
        self._asked = None

    def leave(self) -> list[Output]:
        """No consumer any more; what it had not taken."""
        left: list[Output] = []
        try:
            while True:
                left.append(self._receive.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            pass
        self._receive.close()
        return left


class _Ended(Exception):  # noqa: N818
    """The steps are over: by a failure of user code, or by the kernel's end."""

    def __init__(self, failure: Failure | None = None) -> None:
        self.failure = failure


_INTERRUPTED = Failure("KeyboardInterrupt", "", ("KeyboardInterrupt",))


class FakeKernel(Kernel):
    """See the module. Made by `FakeBackend.open`; the lists tell a test what was done to it.

    - `executed`, `setups`: what it was asked to run, in order;
    - `signals`: `"interrupt"`, `"terminate"` and `"kill"`, in order;
    - `die`: end it from outside, as an OOM killer would.
    """

    def __init__(self, script: Script, setup: Script, info: KernelInfo) -> None:
        self.info = info
        self.executed: list[Executed] = []
        self.setups: list[SetupCode] = []
        self.signals: list[str] = []
        self._script, self._setup_script = script, setup
        self._exit: Exit | None = None
        self._exited = trio.Event()
        self._violation: ProtocolViolation | None = None
        self._count = 0
        self._turn = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self._waiting: trio.CancelScope | None = None
        self._running: _FakeCell | None = None
        self._hard: HangHard | None = None
        self._late: deque[BackgroundOutput] = deque()
        self._late_added = trio.Event()
        self._send_background, self._background = trio.open_memory_channel[BackgroundOutput](0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the kernel going until cancelled."""
        async with self._send_background, trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            while True:
                while self._late:
                    await self._send_background.send(self._late[0])
                    self._late.popleft()
                self._late_added = trio.Event()
                await self._late_added.wait()

    # Cells

    @asynccontextmanager
    async def execute(
        self,
        code: str,
        *,
        cell: str,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tools: Sequence[ToolSpec] = (),
    ) -> AsyncIterator[Cell]:
        """See `Kernel.execute`."""
        self._raise_if_dead()
        if env and not self.info.has_guest:
            raise KernelError("this kernel has no guest: a cell can't have variables of its own")
        self.executed.append(Executed(code, cell, dict(env or {}), stdin, tuple(tools)))
        running = _FakeCell(stdin, tools if self.info.has_guest else ())
        assert self._nursery is not None
        self._nursery.start_soon(self._run_cell, running, code, cell)
        try:
            yield running
        finally:
            self._write_late(running.leave(), cell)

    async def _run_cell(self, running: _FakeCell, code: str, cell: str) -> None:
        late: list[Output] = []

        async def write(output: Output) -> None:
            if isinstance(output, Stream):
                output = replace(output, cell=cell)
            elif isinstance(output, ExecuteResult) and output.execution_count is None:
                output = replace(output, execution_count=self._count)
            try:
                await self._unless_interrupted(lambda: running.send.send(output))
            except trio.BrokenResourceError:
                self._write_late([output], cell)

        with running.send:
            try:
                async with self._turn:
                    if self._exit is None:
                        self._count += 1
                        self._running = running
                        running.begin()
                        count = self._count
                        failure = await self._perform(_steps(self._script, code), write, late, [])
                        await self._withdraw_all(running)
                        if self._exit is None:
                            status = "ok" if failure is None else "error"
                            running.reply = Reply(status, count, failure)  # type: ignore[arg-type]
            finally:
                self._running = None
                # Also when the kernel was closed before this task first ran.
                if running.reply is None and self._exit is not None:
                    running.failure = self._death()
        self._write_late(late, cell)

    async def _perform(
        self,
        steps: Iterable[Step],
        write: Callable[[Output], Awaitable[None]],
        late: list[Output],
        names: list[str],
    ) -> Failure | None:
        """Follow the steps; how user code failed, None when it did not. May end the kernel."""
        try:
            for step in steps:
                await self._do(step, write, late, names)
                if self._exit is not None:
                    break
        except _Ended as ended:
            return ended.failure
        return None

    async def _do(
        self,
        step: Step,
        write: Callable[[Output], Awaitable[None]],
        late: list[Output],
        names: list[str],
    ) -> None:
        match step:
            case Hang():
                await self._unless_interrupted(trio.sleep_forever)
            case Wait(event):
                await self._unless_interrupted(event.wait)
            case HangHard():
                self._hard = step
                try:
                    await self._exited.wait()
                finally:
                    self._hard = None
            case Ask():
                for follow in await self._ask(step, write):
                    await self._do(follow, write, late, names)
            case CallTool():
                for follow in await self._call_tool(step, write):
                    await self._do(follow, write, late, names)
            case Die(exit_):
                self.die(exit_)
            case Fail(ename, evalue, traceback):
                raise _Ended(Failure(ename, evalue, traceback))
            case Violate(reason):
                self._violation = ProtocolViolation(reason)
                self.die(Exit(signal=SIGKILL))
            case Background(data, name):
                late.append(Stream("stderr" if name == "stderr" else "stdout", data))
            case Names(added):
                names.extend(added)
            case _:
                await write(step)

    async def _ask(self, step: Ask, write: Callable[[Output], Awaitable[None]]) -> Iterable[Step]:
        running = self._running
        if running is None or not running.stdin:
            raise _Ended(Failure("StdinNotImplementedError", "nobody can in this session"))
        request, answered = running.ask(step)
        try:
            await write(request)
            await self._unless_interrupted(answered.wait)
        except _Ended:
            running.withdraw()
            if self._exit is None:
                await write(InputWithdrawn())
            raise
        if running.text is None:
            raise _Ended(Failure("EOFError", running.why, ("EOFError",)))
        return step.then(running.text)

    async def _call_tool(
        self, step: CallTool, write: Callable[[Output], Awaitable[None]]
    ) -> Iterable[Step]:
        running = self._running
        if running is None or step.name not in running.tools:
            raise _Ended(Failure("ToolError", f"{step.name}: this session has no such tool"))
        request, call = running.call(step)
        try:
            await write(request)
            if step.background:
                return ()
            await self._unless_interrupted(call.done.wait)
        except _Ended:
            if running.calls.pop(request.id, None) is not None:
                await write(ToolWithdrawn(request.id))
            raise
        if call.failed:
            raise _Ended(Failure("ToolError", f"{step.name}: {call.answer['message']}"))
        return step.then(call.answer)

    @staticmethod
    async def _withdraw_all(running: _FakeCell) -> None:
        """Its end ends what nobody has answered."""
        for id_ in sorted(running.calls):
            del running.calls[id_]
            with suppress(trio.BrokenResourceError):
                await running.send.send(ToolWithdrawn(id_))

    async def _unless_interrupted(self, function: Callable[[], Awaitable[object]]) -> None:
        with trio.CancelScope() as self._waiting:
            await function()
        # Asked, not felt: it may have come when the function was just done.
        interrupted = self._waiting.cancel_called
        self._waiting = None
        if interrupted:
            raise _Ended(_INTERRUPTED)

    # Setup

    async def setup(self, code: SetupCode) -> SetupReport:
        """See `Kernel.setup`. The script is asked for `code.name`."""
        if not self.info.has_guest:
            raise KernelError("this kernel has no guest: setup code can't run in it")
        self._raise_if_dead()
        self.setups.append(code)
        printed, names = bytearray(), list[str]()
        done, failures = trio.Event(), list[Failure | None]()
        started = trio.current_time()

        async def keep(output: Output) -> None:
            if isinstance(output, Stream):
                printed.extend(output.data)

        async def run() -> None:
            async with self._turn:
                if self._exit is None:
                    steps = _steps(self._setup_script, code.name)
                    failures.append(await self._perform(steps, keep, [], names))
            done.set()

        assert self._nursery is not None
        self._nursery.start_soon(run)
        await done.wait()
        if self._exit is not None:
            death = self._death()
            raise KernelDied(self._exit, bytes(printed)) if isinstance(death, KernelDied) else death
        duration_s = trio.current_time() - started
        return SetupReport(code.name, tuple(names), bytes(printed), duration_s, failures[0])

    # Ending

    def die(self, exit_: Exit) -> None:
        """End the process, as something outside would."""
        if self._exit is None:
            self._exit = exit_
            self._exited.set()
            if self._waiting is not None:
                self._waiting.cancel()

    async def interrupt(self) -> bool:
        """See `Kernel.interrupt`."""
        await trio.lowlevel.checkpoint()
        self.signals.append("interrupt")
        if self._exit is not None:
            return False
        if self._waiting is not None:
            self._waiting.cancel()
        return True

    async def terminate(self) -> None:
        """See `Kernel.terminate`."""
        await trio.lowlevel.checkpoint()
        self.signals.append("terminate")
        if self._hard is None or self._hard.terminates:
            self.die(Exit(signal=SIGTERM))

    async def kill(self, because: Exit | None = None) -> None:
        """See `Kernel.kill`."""
        await trio.lowlevel.checkpoint()
        self.signals.append("kill")
        self.die(replace(because or Exit(), signal=SIGKILL))

    @property
    def exit(self) -> Exit | None:
        """See `Kernel.exit`."""
        return self._exit

    async def wait_exited(self) -> Exit:
        """See `Kernel.wait_exited`."""
        await self._exited.wait()
        assert self._exit is not None
        return self._exit

    @property
    def background(self) -> trio.MemoryReceiveChannel[BackgroundOutput]:
        """See `Kernel.background`."""
        return self._background

    def _death(self) -> KernelError:
        assert self._exit is not None
        return self._violation or KernelDied(self._exit)

    def _raise_if_dead(self) -> None:
        if self._exit is not None:
            raise self._death()

    def _write_late(self, outputs: Iterable[Output], cell: str) -> None:
        for output in outputs:
            if isinstance(output, (Stream, DisplayData)):
                self._late.append(replace(output, cell=cell, background=True))
        self._late_added.set()


class FakeBackend(Backend):
    """Opens `FakeKernel`s.

    - `script`, `setup`: what kernels do for code, and for setup code by its name (nothing, when a
      mapping does not have it);
    - `launches`: what happens to one launch after the other: None is a kernel, an exception is
    raised,
      `Hang()` is a kernel that never gets ready (`LaunchTimeout` after the spec's timeout, on
      trio's clock). Launches beyond the last are kernels;
    - `specs`, `kernels`: every spec that was asked for, and every kernel that was given.
    """

    name = "fake"

    def __init__(
        self,
        script: Script,
        *,
        setup: Script | None = None,
        launches: Iterable[Exception | Hang | None] = (),
        info: KernelInfo | None = None,
    ) -> None:
        self._script = script
        self._setup: Script = (lambda _: ()) if setup is None else setup
        self._launches = deque(launches)
        self._info = info or KernelInfo("python", "3", has_guest=True)
        self.specs: list[LaunchSpec] = []
        self.kernels: list[FakeKernel] = []

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        self.specs.append(spec)
        match self._launches.popleft() if self._launches else None:
            case Hang():
                await trio.sleep(spec.startup_timeout_s)
                raise LaunchTimeout(f"the kernel was not ready after {spec.startup_timeout_s:g} s")
            case Exception() as failure:
                raise failure
            case None:
                pass
        kernel = FakeKernel(self._script, self._setup, self._info)
        self.kernels.append(kernel)
        async with background_nursery() as nursery:
            await nursery.start(kernel.run)
            try:
                yield kernel
            finally:
                kernel.die(Exit(code=0))
