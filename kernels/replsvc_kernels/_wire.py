"""`WireKernel`: a kernel over the Jupyter wire, the same for every backend.

Readers take messages off the channels and hand them to the running cell or to whoever waits for a
reply; the cell's consumer does the rest (`_cell`). Completion is reply and idle, or the process's
end, watched together.
"""

from __future__ import annotations

import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import trio

from replsvc_kernels._cell import MAX_BUFFERED_BYTES, WireCell
from replsvc_kernels._channels import Channels, Message
from replsvc_kernels._late import EndedCell, Late
from replsvc_kernels._merge import Merger
from replsvc_kernels._parse import (
    count,
    json_object,
    parse_failure,
    parse_last,
    parse_output,
    parse_reply,
    text,
)
from replsvc_kernels._pipes import Pair, Pipe, Pump
from replsvc_kernels._tools import ToolCalls, as_content
from replsvc_kernels.backends.base import Process
from replsvc_kernels.kernel import (
    Cell,
    Kernel,
    KernelDied,
    KernelError,
    KernelInfo,
    LaunchError,
    ProtocolViolation,
)
from replsvc_kernels.messages import (
    BackgroundOutput,
    DisplayData,
    Exit,
    LimitHit,
    Limits,
    Output,
    SetupCode,
    SetupReport,
    Stream,
    ToolSpec,
)

MAX_WAITING_MESSAGES = 200
MAX_SETUP_OUTPUT_BYTES = 64 * 1024
PRINTED_BYTES = 8 * 1024
# Until a kernel that is starting answers, it is asked after such pauses, each twice the last.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
# A process that ends closes its connections; its end is heard of within this time.
DEATH_IS_KNOWN_S = 0.5


def execute_content(code: str, stdin: bool = False) -> dict[str, Any]:
    """What a request says that has a cell run."""
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": stdin,
        # Per call, never for the queue: only one request is ever with the kernel.
        "stop_on_error": False,
    }


class Waiter:
    """Messages whose parents are requests that someone waits on."""

    def __init__(self) -> None:
        self.messages: deque[Message] = deque(maxlen=MAX_WAITING_MESSAGES)
        self.event = trio.Event()

    def put(self, message: Message) -> None:
        self.messages.append(message)
        self.event.set()

    async def wait(self) -> None:
        await self.event.wait()
        self.event = trio.Event()


class WireKernel(Kernel):
    """A kernel on its `Process`, `Channels` and, with our guest, `Pump`. `run` keeps it going.

    `message_interrupt_s` makes interrupts a message with that deadline, instead of a signal;
    `printed` is where whoever launched the kernel keeps the last it wrote outside cells.
    """

    def __init__(
        self,
        info: KernelInfo,
        process: Process,
        channels: Channels,
        limits: Limits,
        *,
        pump: Pump | None = None,
        nonce: bytes = b"",
        message_interrupt_s: float | None = None,
        printed: bytearray | None = None,
    ) -> None:
        self.info, self._nonce = info, nonce
        self._pump, self._process, self._channels, self._limits = pump, process, channels, limits
        self._message_interrupt_s = message_interrupt_s
        self._cells: dict[str, WireCell] = {}
        self._probes: dict[str, WireCell] = {}
        self._waiting: dict[str, Waiter] = {}
        self._late = Late()
        self._late_pairs: dict[int, Pair] = {}
        self._welcomed = trio.Event()
        self._printed = bytearray() if printed is None else printed
        self._next: Pair | None = None
        self._told_tools: Sequence[ToolSpec] | None = ()
        self._violation: ProtocolViolation | None = None
        self._because: Exit | None = None
        self.unused = False
        """Whether it waits for a session: see `adopt`."""

    # Running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read channels and pipes, and watch the process, until cancelled."""
        async with aclosing(self._late), trio.open_nursery() as nursery:
            if self._pump is not None:
                nursery.start_soon(self._pump.run)
            nursery.start_soon(self._feed_late)
            nursery.start_soon(self._guard, self._read_shell)
            nursery.start_soon(self._guard, self._read_iopub)
            nursery.start_soon(self._guard, self._read_control)
            nursery.start_soon(self._guard, self._read_stdin)
            nursery.start_soon(self._guard, self._watch_connection)
            nursery.start_soon(self._watch_process)
            task_status.started()

    async def _guard(self, read: Callable[[], Awaitable[None]]) -> None:
        """A kernel that breaks the protocol is ended, and whoever waits on it is told why."""
        try:
            await read()
        except ProtocolViolation as violation:
            await self._end_for(violation)

    async def _end_for(self, violation: ProtocolViolation) -> None:
        self._violation = self._violation or violation
        self._fail_all(self._violation)
        await self._process.kill()

    async def _read_iopub(self) -> None:
        while True:
            message = await self._channels.receive("iopub")
            if (cell := self._cells.get(message.parent)) is not None:
                await cell.put(message)
            elif (cell := self._probes.get(message.parent)) is not None:
                if message.content.get("execution_state") == "idle":
                    cell.idle()
            elif (ended := self._late.cell_of(message.parent)) is not None:
                output = parse_output(message)
                if isinstance(output, DisplayData):
                    mark = count(message.metadata.get("replsvc_mark"))
                    self._late.show(ended, mark, output, message.size)
            elif message.type == "iopub_welcome":
                self._welcomed.set()
            else:
                self._wake_waiter(message)

    async def _read_shell(self) -> None:
        while True:
            message = await self._channels.receive("shell")
            if message.type == "execute_reply":
                if (cell := self._cells.get(message.parent)) is not None:
                    cell.end(parse_reply(message, self._limits), parse_last(message))
            else:
                self._wake_waiter(message)

    async def _read_control(self) -> None:
        while True:
            self._wake_waiter(await self._channels.receive("control"))

    async def _read_stdin(self) -> None:
        while True:
            message = await self._channels.receive("stdin")
            # What is asked for a cell that has ended, or that never was, nobody hears.
            if (cell := self._cells.get(message.parent)) is not None:
                await cell.ask(message)

    def _wake_waiter(self, message: Message) -> None:
        if (waiter := self._waiting.get(message.parent)) is not None:
            waiter.put(message)

    async def _watch_connection(self) -> None:
        """A broken connection has lost messages: without this, a cell could wait for its end."""
        await self._channels.run()
        with trio.move_on_after(DEATH_IS_KNOWN_S):
            await self._process.wait_exited()
            return
        raise ProtocolViolation("a kernel that lives but broke its connection")

    async def _watch_process(self) -> None:
        died = await self.wait_exited()
        self._fail_all(self._violation or KernelDied(died, bytes(self._printed)))

    def _fail_all(self, error: BaseException) -> None:
        for cell in self._cells.values():
            cell.fail(error)
        for waiter in self._waiting.values():
            waiter.event.set()
        self._welcomed.set()

    def _raise_if_dead(self) -> None:
        if self._violation is not None or self._process.exit is not None:
            raise self._end()

    def _end(self) -> KernelError:
        """Why it has ended, which it has."""
        if self._violation is not None:
            return self._violation
        ended = self.exit
        assert ended is not None
        return KernelDied(ended, bytes(self._printed))

    # Output outside cells

    def orphan(self, pair: Pair) -> None:
        """Keep the last of what the kernel prints outside cells, to explain a death."""
        assert self._pump is not None
        pair.sink = self._keep_printed
        self._pump.register(pair)

    def _keep_printed(self, _pipe: Pipe, data: bytes) -> bool:
        self._printed += data
        del self._printed[:-PRINTED_BYTES]
        return True

    def _late_merger(self, pair: Pair) -> Merger:
        return Merger(self._nonce, pair.cell, turns=False)

    def _let_go(self, pair: Pair) -> EndedCell:
        """The pair's cell has ended, and what comes now is background."""
        # Made here, not with the first bytes: one that counts them begins where the cell ended.
        ended = EndedCell(pair.cell, self._late_merger(pair))

        def sink(pipe: Pipe, data: bytes) -> bool:
            self._late.add(ended.write(pipe.name, data), ended.cell)
            if self._late.waiting_bytes < MAX_BUFFERED_BYTES:
                return True
            # There is a backlog: whoever gets it ready resumes this pair after it.
            self._late_pairs[pipe.pair.number] = pipe.pair
            return False

        assert self._pump is not None
        pair.sink = sink
        self._pump.retire(pair)
        return ended

    async def _feed_late(self) -> None:
        while True:
            await self._late.give_out()
            pairs, self._late_pairs = self._late_pairs, {}
            for pair in pairs.values():
                assert self._pump is not None
                self._pump.resume(pair)

    @property
    def background(self) -> trio.MemoryReceiveChannel[BackgroundOutput]:
        """See `Kernel.background`."""
        return self._late.received

    # Requests

    def _take_pair(self, pump: Pump) -> Pair:
        pair, self._next = self._next or pump.hand_over(), None
        return pair

    def prefetch(self) -> None:
        """Send the next cell's pipes ahead, while nobody waits."""
        if self._pump is not None and self._next is None and self._process.exit is None:
            # Short of descriptors now: the next cell tries again, and says so.
            with contextlib.suppress(OSError):
                self._next = self._pump.hand_over()

    def adopt(self, env: Mapping[str, str], cwd: str) -> None:
        """Give a kernel that is `unused` to a session; it knows before it runs anything.

        Raises `KernelDied`, `LaunchError` where there are no descriptors for its first cell.
        """
        self._raise_if_dead()
        assert self._pump is not None
        self.unused = False
        try:
            self._next = self._pump.hand_over({"adopt": {"env": dict(env), "cwd": cwd}})
        except OSError as error:
            raise LaunchError(f"no pipes for the kernel can be made: {error}") from error

    async def _send(
        self,
        channel: Literal["shell", "control"],
        type_: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        try:
            return self._channels.request(channel, type_, content, metadata)
        except ProtocolViolation as violation:
            await self._end_for(violation)
            raise

    async def _send_answer(self, to: Message, value: str, why: str) -> None:
        metadata = {"replsvc": {"why": why}} if why and self._pump is not None else {}
        try:
            self._channels.answer(to, {"status": "ok", "value": value}, metadata)
        except ProtocolViolation as violation:
            await self._end_for(violation)
            raise

    async def _send_tool_reply(self, content: Mapping[str, Any], patient: bool) -> None:
        if patient:
            await self._channels.room("control")
        await self._send("control", "tool_reply", content)

    def _probe(self, cell: WireCell) -> None:
        """Ask for an idle that comes after the cell's: its own was dropped on the way.

        A kernel answers its requests in their order, so what it publishes for this one is later.
        """
        self._probes[self._channels.request("shell", "kernel_info_request", {})] = cell

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
        if env and self._pump is None:
            raise KernelError("this kernel has no guest: a cell can't have variables of its own")
        metadata: dict[str, Any] = {}
        pair: Pair | None = None
        if self._pump is not None:
            pair = self._take_pair(self._pump)
            pair.cell = cell
            # brief: nobody but us listens, so the guest leaves out what only others need
            own = {"pair": pair.number, "env": dict(env or {}), "brief": True}
            metadata = {"replsvc": own}
            # told when they change: what they say is long, and most cells call none
            tools = tuple(tools)
            if tools != self._told_tools:
                own["tools"] = as_content(tools)
        running = self._new_cell(cell, pair)
        running.answered = stdin
        if tools and pair is not None:
            running.tools = ToolCalls(tools, self._send_tool_reply)
        id_ = ""
        try:
            id_ = await self._send(
                "shell", "execute_request", execute_content(code, stdin), metadata
            )
            self._told_tools = tools
            self._cells[id_] = running
            yield running
        finally:
            self._cells.pop(id_, None)
            self._leave(running, pair, id_)

    def _new_cell(self, cell: str, pair: Pair | None) -> WireCell:
        return WireCell(cell, self._nonce, self._pump, pair, self._probe, self._send_answer)

    def _leave(self, cell: WireCell, pair: Pair | None, request: str) -> None:
        """Nobody reads `cell` any more: what it still says is background."""
        self._probes = {key: it for key, it in self._probes.items() if it is not cell}
        self._late.add([*cell.leave()], cell.cell)
        ended = EndedCell(cell.cell)
        if self._pump is not None and pair is not None:
            ended = self._let_go(pair)
            self._pump.resume(pair)
            self.prefetch()
        self._late.ended(request, ended)

    async def request(
        self,
        channel: Literal["shell", "control"],
        type_: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Send a request and wait for its reply, whose type ends in `_reply` instead.

        Raises `KernelDied` when the process ends first. The caller sets the deadline: a handler
        that raises in the kernel never replies.
        """
        self._raise_if_dead()
        id_ = await self._send(channel, type_, content, metadata)
        waiter = self._waiting[id_] = Waiter()
        try:
            while True:
                await waiter.wait()
                while waiter.messages:
                    message = waiter.messages.popleft()
                    if message.type == type_.removesuffix("_request") + "_reply":
                        return message
                self._raise_if_dead()
        finally:
            del self._waiting[id_]

    async def setup(self, code: SetupCode) -> SetupReport:
        """See `Kernel.setup`."""
        if self._pump is None:
            raise KernelError("this kernel has no guest: setup code can't run in it")
        self._raise_if_dead()
        printed = bytearray()
        merger = Merger(self._nonce)  # nothing is displayed outside cells, but markers are written
        pair = self._take_pair(self._pump)

        def keep(outputs: list[Output]) -> None:
            for output in outputs:
                if isinstance(output, Stream):
                    printed.extend(output.data)
            del printed[:-MAX_SETUP_OUTPUT_BYTES]

        def sink(pipe: Pipe, data: bytes) -> bool:
            keep(merger.feed(pipe.name, data))
            return True

        def all_printed() -> bytes:
            for pipe in pair.pipes:
                for data in pipe.drain():
                    sink(pipe, data)
            keep(merger.flush())
            return bytes(printed)

        pair.sink = sink
        self._pump.register(pair)
        content = {
            "name": code.name,
            "source": code.source,
            "file": code.file,
            "first_line": code.first_line,
            "body_of": code.body_of,
            "values": dict(code.values),
            "pair": pair.number,
        }
        started = trio.current_time()
        try:
            reply = (await self.request("shell", "setup_request", content)).content
        except KernelDied as died:
            raise KernelDied(died.exit, all_printed()) from None
        finally:
            # What the setup's own processes print later is nobody's output: let it go.
            self._pump.retire(pair)
            self.prefetch()
        names = reply.get("names")
        return SetupReport(
            code.name,
            tuple(text(name, 1_000) for name in names[:10_000]) if isinstance(names, list) else (),
            all_printed(),
            trio.current_time() - started,
            None if reply.get("status") == "ok" else parse_failure(reply, self._limits),
        )

    async def wait_ready(self) -> None:
        """Wait until replies arrive *and* our subscription to iopub is in force.

        A shell reply says nothing about the subscription: only our own status on iopub does, so ask
        again until it shows. Raises `KernelDied` and `ProtocolViolation`.
        """
        waiter, asked = Waiter(), list[str]()
        pause, answered, idle = FIRST_PAUSE_S, False, False
        try:
            while True:
                self._raise_if_dead()
                asked.append(await self._send("shell", "kernel_info_request", {}))
                self._waiting[asked[-1]] = waiter
                with trio.move_on_after(pause):
                    while True:
                        await waiter.wait()
                        self._raise_if_dead()
                        while waiter.messages:
                            message = waiter.messages.popleft()
                            if message.type == "kernel_info_reply":
                                answered, pause = True, FIRST_PAUSE_S
                                self._learn(message)
                            elif message.type == "status":
                                idle |= message.content.get("execution_state") == "idle"
                        if answered and idle:
                            return
                if not answered:
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        finally:
            for id_ in asked:
                self._waiting.pop(id_, None)

    async def wait_welcome(self) -> None:
        """Wait until our subscription is in force, of which a guest tells every subscriber.

        A guest that has said that it is ready needs no more than this; `wait_ready` is for others.
        Raises `KernelDied` and `ProtocolViolation`.
        """
        await self._welcomed.wait()
        self._raise_if_dead()

    def _learn(self, message: Message) -> None:
        language = json_object(message.content.get("language_info"))
        self.info = KernelInfo(
            text(language.get("name"), 100) or self.info.language,
            text(language.get("version"), 100) or self.info.version,
            self.info.has_guest,
            self.info.isolation,
            self._process.pid,
        )

    # Ending

    async def interrupt(self) -> bool:
        """See `Kernel.interrupt`."""
        if self._pump is None:
            # Our guest says so itself; in others an interrupt ends `input()`, and they say nothing.
            for cell in self._cells.values():
                cell.withdraw()
        if self._message_interrupt_s is None:
            return await self._process.signal(signal.SIGINT)
        with contextlib.suppress(KernelError), trio.move_on_after(self._message_interrupt_s):
            await self.request("control", "interrupt_request", {})
            return True
        return False

    async def terminate(self) -> None:
        """See `Kernel.terminate`."""
        await self._process.signal(signal.SIGTERM)

    async def kill(self, because: Exit | None = None) -> None:
        """See `Kernel.kill`."""
        if self._process.exit is None:
            self._because = because or self._because
        await self._process.kill()

    def cpu_s(self) -> float | None:
        """See `Kernel.cpu_s`."""
        return self._process.accounts.cpu_s()

    def limits_hit(self) -> tuple[LimitHit, ...]:
        """See `Kernel.limits_hit`."""
        return self._process.accounts.hits()

    async def shutdown(self, grace_s: float) -> None:
        """Ask politely, wait at most `grace_s`, then end whatever is left."""
        if self._process.exit is None and grace_s > 0:
            with contextlib.suppress(KernelError), trio.move_on_after(grace_s):
                content = {"restart": False, "replsvc": True}
                self._channels.request("control", "shutdown_request", content)
                await self._process.wait_exited()
        await self._process.kill()

    @property
    def exit(self) -> Exit | None:
        """See `Kernel.exit`."""
        ended = self._process.exit
        return None if ended is None else self._told(ended)

    async def wait_exited(self) -> Exit:
        """See `Kernel.wait_exited`."""
        return self._told(await self._process.wait_exited())

    def _told(self, ended: Exit) -> Exit:
        """With the limit that we ended it for, unless it ended by itself before."""
        if self._because is None or ended.cause is not None or ended.signal != signal.SIGKILL:
            return ended
        return replace(self._because, signal=ended.signal)
