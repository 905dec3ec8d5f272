"""`WireCell`: one running cell, driven by its consumer.

The consumer takes what the channel readers put into the cell's inbox and what is in the cell's
pipes, merges them, and gets outputs. A consumer that is slow stops the pipes, and nobody else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import trio

from replsvc_kernels._channels import Message
from replsvc_kernels._merge import BEGUN, Merger
from replsvc_kernels._parse import Placed, count, parse_input_request, parse_output
from replsvc_kernels._pipes import Pair, Pipe, Pump
from replsvc_kernels._tools import ToolCalls
from replsvc_kernels.kernel import Cell, KernelDied
from replsvc_kernels.messages import (
    InputRequest,
    InputWithdrawn,
    Output,
    Reply,
    Stream,
    ToolRequest,
    ToolWithdrawn,
)

# A cell that ends within this time never registers its pipes with epoll.
QUICK_CELL_S = 0.005
# How long after a kernel's death what it had published may still arrive, and how long a silence
# says that it has.
LAST_WORDS_S = 0.2
SILENCE_S = 0.05
# Publishers may drop messages for a slow reader, the idle after a reply among them: when it is this
# late, the kernel is asked for another.
LATE_IDLE_S = 1.0
# A call whose place in the output can't be had, as after a display that an interrupt cut off, is
# given out this late.
LATE_CALL_S = 0.2
MAX_BUFFERED_BYTES = 1024 * 1024
MAX_INBOX = 200
MAX_INBOX_BYTES = 8 * 1024 * 1024
# What Jupyter's own frontends send when somebody presses Ctrl-D.
END_OF_INPUT = "\x04"


class WireCell(Cell):
    """See `Cell`. `pump` and `pair` are there when our guest runs the cell.

    `probe` asks the kernel for an idle that comes after this cell's: `idle` when that has come.
    `send_answer` sends a value and a reason in reply to an `input_request`; `answered` says whether
    the cell's consumer answers any. `tools` are its calls of tools, where it has any.
    """

    answered = False
    tools: ToolCalls | None = None

    def __init__(
        self,
        cell: str,
        nonce: bytes,
        pump: Pump | None,
        pair: Pair | None,
        probe: Callable[[WireCell], None],
        send_answer: Callable[[Message, str, str], Awaitable[None]],
    ) -> None:
        self.cell = cell
        self._probe, self._send_answer = probe, send_answer
        self._asked: Message | None = None
        self._questions = 0
        self._started = trio.Event()
        self._begun = BEGUN % nonce
        self._pump, self._pair = pump, pair
        self._merger = Merger(nonce, cell)
        self._ready: deque[Output] = deque()
        self._inbox: deque[Placed] = deque()
        self._inbox_bytes = 0
        self._buffer: deque[tuple[Pipe, bytes]] = deque()
        self._buffered = 0
        self._wakeup, self._room = trio.Event(), trio.Event()
        self._idle = self._done = self._left = self._pumped = False
        self._quick_until = self._call_until = math.inf
        self._failure: BaseException | None = None
        self._published = 0

    # What the channel readers and the pump put in.

    async def put(self, message: Message) -> None:
        """From the iopub reader: waits while the consumer is behind."""
        if message.type in ("tool_request", "tool_withdrawn"):
            if self.tools is not None and not self._done:
                asked = await self.tools.take(message)
                if asked is not None:
                    await self._take_in(message, asked)
            return
        self._published += 1
        self._look_for_all()
        if message.type == "status":
            state = message.content.get("execution_state")
            if state == "busy":
                self._started.set()
            elif state == "idle":
                self.idle()
            return
        output = parse_output(message)
        if output is None:
            return
        if isinstance(output, Stream):
            output = Stream(output.name, output.data, self.cell)
        await self._take_in(message, output)

    async def ask(self, message: Message) -> None:
        """From the stdin reader: a question, or that the last one is off."""
        if message.type == "input_withdrawn":
            self.withdraw(count(message.metadata.get("replsvc_mark")))
        elif message.type == "input_request" and self.answered:
            self._asked = message
            self._questions += 1
            await self._take_in(message, parse_input_request(message, self._questions))
        elif message.type == "input_request":
            # It was told that nobody answers, and waits all the same: not for ever.
            await self._send_answer(message, END_OF_INPUT, "nobody answers in this session")

    def withdraw(self, mark: int | None = None) -> None:
        """The code does not wait for an answer any more."""
        if self._asked is not None:
            self._asked = None
            self._receive(Placed(mark, InputWithdrawn(), 0))
            self._wakeup.set()

    async def answer(self, request: InputRequest, text: str | None, *, why: str = "") -> bool:
        """See `Cell.answer`."""
        asked = self._asked
        if asked is None or request.number != self._questions or self._done:
            return False
        self._asked = None
        await self._send_answer(asked, END_OF_INPUT if text is None else text, why)
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
        if self.tools is None or self._done:
            return False
        return await self.tools.answer(id_, result, error)

    async def _take_in(self, message: Message, output: Output) -> None:
        self._receive(Placed(count(message.metadata.get("replsvc_mark")), output, message.size))
        self._wakeup.set()
        while not self._left and (
            len(self._inbox) > MAX_INBOX or self._inbox_bytes > MAX_INBOX_BYTES
        ):
            self._room = trio.Event()
            await self._room.wait()

    def _receive(self, placed: Placed) -> None:
        self._inbox.append(placed)
        self._inbox_bytes += placed.size

    def idle(self) -> None:
        """The kernel has said all that belongs to this cell."""
        self._idle = True
        self._wakeup.set()

    def end(self, reply: Reply, last: Placed | None = None) -> None:
        """From the shell reader, with the last value where it came with the reply.

        A second reply to the same request is ignored.
        """
        if self.reply is None:
            self.reply = reply
            if last is not None:
                self._receive(last)
            self._started.set()
            self._wakeup.set()
            self._look_for_all()

    def _look_for_all(self) -> None:
        said = self.reply.published if self.reply is not None else None
        if said is not None and self._published >= said:
            # The last is in the inbox before the consumer looks: there is no checkpoint until then.
            self.idle()

    def fail(self, error: BaseException) -> None:
        """The process has ended, or broke the protocol; the first reason counts."""
        if self._failure is None:
            self._failure = error
        self._started.set()
        self._wakeup.set()

    def sink(self, pipe: Pipe, data: bytes) -> bool:
        """From the pump."""
        if not self._started.is_set() and data.startswith(self._begun):
            self._started.set()
        self._buffer.append((pipe, data))
        self._buffered += len(data)
        self._wakeup.set()
        return self._buffered < MAX_BUFFERED_BYTES

    # What the consumer takes out.

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while not self._ready:
            if self._done:
                # It has waited for what ended it: that was its turn of the loop.
                await trio.lowlevel.checkpoint_if_cancelled()
                if self._failure is not None:
                    raise self._failure
                raise StopAsyncIteration
            await self._more()
        return self._ready.popleft()

    async def _more(self) -> None:
        """Wait for something, and move it to `_ready`."""
        if self._take():
            return
        if self._complete:
            self._finish()
            return
        if self._failure is not None:
            await self._last_words()
            return
        # No checkpoint between what was looked at above and this: nothing can be missed.
        self._wakeup = trio.Event()
        if self.reply is not None:
            # All its bytes are there, and may be what displays in hand wait for.
            self._drain_pipes()
            if self._take():
                return
            with trio.move_on_after(LATE_IDLE_S):
                await self._wakeup.wait()
                return
            self._probe(self)
            return
        if self.tools is not None and self._merger.holds_a_call:
            # from when it came, whatever else comes meanwhile
            self._call_until = min(self._call_until, trio.current_time() + LATE_CALL_S)
            with trio.move_on_at(self._call_until):
                await self._wakeup.wait()
                return
            self._merge_buffer()
            self._ready.extend(self._merger.flush())
            return
        self._call_until = math.inf
        if self._pumped or self._pump is None or self._pair is None:
            await self._wakeup.wait()
            return
        # One deadline for the cell, not for each of its messages.
        now = trio.current_time()
        self._quick_until = min(self._quick_until, now + QUICK_CELL_S)
        if now < self._quick_until:
            if trio.current_effective_deadline() <= self._quick_until:
                # Our consumer comes back by itself: a scope of our own would be one too many.
                await self._wakeup.wait()
                return
            with trio.move_on_at(self._quick_until):
                await self._wakeup.wait()
                return
        self._listen(self._pump, self._pair)

    def _listen(self, pump: Pump, pair: Pair) -> None:
        """Have the pump read the pipes from now on: the cell takes its time."""
        self._pumped = True
        pair.sink = self.sink
        pump.register(pair)

    async def wait_started(self) -> None:
        """See `Cell.wait_started`. Our guest says it in the pipe, where nobody may look yet."""
        if self._pump is not None and self._pair is not None and not (self._pumped or self._done):
            self._listen(self._pump, self._pair)
        await self._started.wait()

    @property
    def _complete(self) -> bool:
        return self.reply is not None and self._idle

    def _take(self, *, everything: bool = False) -> bool:
        self._merge_buffer()
        if self._pumped and self._pump is not None and self._pair is not None:
            self._pump.resume(self._pair)
        # A marker is written before its message is sent: with too many displays in hand the bytes
        # are what is missing, and they will come. Unless a marker's display is: then it is next.
        while self._inbox and (everything or self._merger.missing or not self._merger.crowded):
            number, output, size = self._inbox.popleft()
            self._inbox_bytes -= size
            if isinstance(output, ToolRequest | ToolWithdrawn):
                # The code waits: what it wrote before is there, and not to be waited for.
                self._drain_pipes()
            self._ready.extend(self._merger.display(number, output, size))
        self._room.set()
        return bool(self._ready)

    def _merge_buffer(self) -> None:
        while self._buffer:
            pipe, data = self._buffer.popleft()
            self._ready.extend(self._merger.feed(pipe.name, data))
        self._buffered = 0

    async def _last_words(self) -> None:
        """The process has ended: what it wrote is in the pipes, what it published may still come.

        Markers in the pipes say which displays were published, so only those are waited for; a
        kernel without our guest has none, there only silence tells.
        """
        self._drain_pipes()
        with trio.move_on_after(LAST_WORDS_S):
            while not self._complete and (self._pair is None or self._merger.missing):
                self._wakeup = trio.Event()
                with trio.move_on_after(SILENCE_S) as silence:
                    await self._wakeup.wait()
                self._take()
                if self._pair is None and silence.cancelled_caught:
                    break
        self._finish()

    def _finish(self) -> None:
        """Everything written before the reply is in the pipes now: read exactly that much."""
        if self._complete and isinstance(self._failure, KernelDied):
            self._failure = None  # it died after this cell, not in it
        self._drain_pipes()
        self._take(everything=True)
        self._ready.extend(self._merger.flush())
        if self.tools is not None:
            self._ready.extend(self.tools.end())
        self._done = True

    def _drain_pipes(self) -> None:
        self._merge_buffer()  # read before what is still in the pipes
        for pipe in self._pair.pipes if self._pair is not None else ():
            for data in pipe.drain():
                self._ready.extend(self._merger.feed(pipe.name, data))

    def leave(self) -> list[Stream]:
        """The consumer is gone. Returns the bytes that it has not taken; no more are accepted."""
        self._take(everything=True)
        self._ready.extend(self._merger.flush())
        self._left = self._done = True
        left = [output for output in self._ready if isinstance(output, Stream)]
        self._ready.clear()
        return left
