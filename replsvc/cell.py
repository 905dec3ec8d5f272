"""Running one cell to its end: outputs on, deadline and interrupts watched, the end said as a
value.

The ladder is execution.md rule 5: interrupt, then terminate, then kill, with a grace after each; a
person's interrupt is only its first step unless forced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal

import trio

from replsvc.calls import Cause
from replsvc.talk import Ask, CallTool, Clock, Talk
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Cell, Kernel, KernelDied, LastingKernel, ProtocolViolation
from replsvc_kernels.messages import Exit, Output, Reply, ToolSpec

Stopped = Literal["timeout", "interrupted", "cancelled", "restarted", "closed", "limit"]

# A kernel is only interrupted in its cell: how long to wait until it says that it is there.
START_WAIT_S = 5.0
# Most cells are quicker than this.
SLOW_S = 0.005
# A signal is delivered at once or not at all.
SIGNAL_S = 1.0


class CellControl:
    """How others stop a cell: by a person's interrupt, a cancellation, or the session's end.

    Safe to use before the cell starts and after it ends. `stopped` says which of them it was.
    """

    def __init__(self) -> None:
        self.stopped: Stopped | None = None
        self.limit: Cause | None = None
        self.climb = False
        self.kill = False
        self.asked = trio.Event()
        self.heard = self._unheard = False
        self._listening: trio.CancelScope | None = None

    def interrupt(self, *, force: bool = False) -> None:
        """Interrupt once; with `force` go up the ladder when that does not end it."""
        self._ask("interrupted", climb=force)

    def cancel(self) -> None:
        """Interrupt and go up the ladder: nobody wants the result any more."""
        self._ask("cancelled", climb=True)

    def end(self, why: Literal["restarted", "closed"]) -> None:
        """Kill at once: the kernel is to go."""
        self.kill = True
        self._ask(why, climb=True)

    def end_for(self, limit: Cause) -> None:
        """Kill at once: this limit of the session was reached."""
        self.limit = self.limit or limit
        self.kill = True
        self._ask("limit", climb=True)

    def _ask(self, why: Stopped, *, climb: bool) -> None:
        if self.stopped is None or climb:
            self.stopped = why
        self.climb = self.climb or climb
        self._unheard = True
        self.asked.set()
        if self._listening is not None:
            self._listening.cancel()

    def move(self, deadline: float) -> None:
        """Whoever listens does so until then instead."""
        if self._listening is not None:
            self._listening.deadline = deadline

    @contextmanager
    def listening(self, deadline: float) -> Iterator[None]:
        """Run the body until `deadline`, or until something is asked, also before this.

        Afterwards `heard` says whether something was.
        """
        with trio.CancelScope(deadline=deadline) as self._listening:
            if self._unheard:
                self._listening.cancel()
            yield
        self._listening = None
        self.heard, self._unheard = self._unheard, False


@dataclass(frozen=True, slots=True)
class CellEnd:
    """How a cell ended: by its reply, or by its kernel's exit or breach of the protocol.

    `execution_s` leaves out `wait_s`, in which it waited for answers.
    """

    reply: Reply | None
    exit: Exit | None
    violation: str | None
    stopped: Stopped | None
    execution_s: float
    wait_s: float = 0.0
    limit: Cause | None = None

    @property
    def state_lost(self) -> bool:
        """Whether the kernel, and with it every name, is gone."""
        return self.exit is not None or self.violation is not None


async def run_cell(
    kernel: Kernel,
    code: str,
    *,
    cell_id: str,
    env: Mapping[str, str],
    timeout_s: float | None,
    grace_s: float,
    control: CellControl,
    sink: Callable[[Output], Awaitable[None]],
    on_slow: Callable[[], None] = lambda: None,
    ask: Ask | None = None,
    tools: Sequence[ToolSpec] = (),
    call: CallTool | None = None,
    max_wait_s: float | None = None,
    resume: bool = False,
) -> CellEnd:
    """Run `code` and hand each output to `sink`, in order; a slow sink slows this cell alone.

    Returns when the cell has ended, whatever ended it. Cancelling it leaves the code running:
    whoever cancels ends the kernel. The sink may be cancelled once it has taken an output.
    `on_slow` is called when the cell still runs after `SLOW_S`. `ask` gets the answers to what the
    code asks; without it asking is an error in the code. `tools` are what the code may call, `call`
    calls them. The clock stands still while it waits for either, for `max_wait_s` in all. With
    `resume` the cell may be running already, for a host that is no more.
    """
    clock = Clock(timeout_s, control.move, max_wait_s)
    died: Exit | None = None
    violation: str | None = None
    reply: Reply | None = None
    try:
        async with _entered(kernel, code, cell_id, env, ask is not None, tools, resume) as cell:
            if ask is None and call is None:
                await _to_its_end(kernel, cell, sink, control, clock, grace_s, on_slow)
            else:
                async with background_nursery() as nursery:
                    talk = Talk(cell, ask, call, clock, sink, nursery)
                    await _to_its_end(
                        kernel, cell, talk.take, control, clock, grace_s, on_slow, talk.close
                    )
            reply = cell.reply
    except KernelDied as error:
        died = error.exit
    except ProtocolViolation as error:
        violation = str(error)
        # It is being ended; until it has, the next call could be given to it.
        await kernel.kill()
    stopped = control.stopped
    if reply is not None and reply.status == "ok" and stopped == "interrupted":
        stopped = None  # the code took the interrupt and ended as it wanted
    execution_s = trio.current_time() - clock.begun - clock.waited_s
    return CellEnd(reply, died, violation, stopped, execution_s, clock.waited_s, control.limit)


def _entered(
    kernel: Kernel,
    code: str,
    cell_id: str,
    env: Mapping[str, str],
    stdin: bool,
    tools: Sequence[ToolSpec],
    resume: bool,
) -> AbstractAsyncContextManager[Cell]:
    if resume and isinstance(kernel, LastingKernel):
        return kernel.resume(code, cell=cell_id, env=env)
    return kernel.execute(code, cell=cell_id, env=env, stdin=stdin, tools=tools)


async def _to_its_end(
    kernel: Kernel,
    cell: Cell,
    sink: Callable[[Output], Awaitable[None]],
    control: CellControl,
    clock: Clock,
    grace_s: float,
    on_slow: Callable[[], None],
    hush: Callable[[], object] = bool,
) -> None:
    """Listen to the cell, and up the ladder when the clock or somebody says so.

    `hush` is called ahead of the ladder: nobody is asked, and no tool called, on it.
    """

    async def ended_before(when: float) -> bool:
        with control.listening(when):
            async for output in cell:
                await sink(output)
            return True
        return False

    if await ended_before(min(clock.deadline, trio.current_time() + SLOW_S)):
        return
    on_slow()
    while not control.climb:
        if control.heard:
            await _interrupt(kernel, cell)
        elif trio.current_time() >= clock.deadline:
            control.stopped = "timeout"
            break
        if await ended_before(clock.deadline):
            return
    hush()
    for step in (_interrupt, _terminate):
        if control.kill:
            break
        await step(kernel, cell)
        until = trio.current_time() + grace_s
        while trio.current_time() < until:
            if await ended_before(until):
                return
            if control.kill:
                break
    await kernel.kill()
    async for output in cell:
        await sink(output)


async def _interrupt(kernel: Kernel, cell: Cell) -> None:
    with trio.move_on_after(START_WAIT_S):
        await cell.wait_started()
    with trio.move_on_after(SIGNAL_S):
        await kernel.interrupt()


async def _terminate(kernel: Kernel, _cell: Cell) -> None:
    with trio.move_on_after(SIGNAL_S):
        await kernel.terminate()
