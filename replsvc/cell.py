"""Running one cell to its end: outputs on, deadline and interrupts watched, the end said as a
value.

The ladder is execution.md rule 5: interrupt, then terminate, then kill, with a grace after each; a
person's interrupt is only its first step unless forced.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import trio

from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Cell, Kernel, KernelDied, ProtocolViolation
from replsvc_kernels.messages import Exit, Output, Reply

Stopped = Literal["timeout", "interrupted", "cancelled", "restarted", "closed"]

# A kernel that is busy with something else than its cell gets this long before the clock starts.
START_WAIT_S = 5.0
# A signal is delivered at once or not at all.
SIGNAL_S = 1.0


class CellControl:
    """How others stop a cell: by a person's interrupt, a cancellation, or the session's end.

    Safe to use before the cell starts and after it ends. `stopped` says which of them it was.
    """

    def __init__(self) -> None:
        self.stopped: Stopped | None = None
        self.asked = trio.Event()
        self.climb = False
        self.kill = False

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

    def _ask(self, why: Stopped, *, climb: bool) -> None:
        if self.stopped is None or climb:
            self.stopped = why
        self.climb = self.climb or climb
        self.asked.set()


@dataclass(frozen=True, slots=True)
class CellEnd:
    """How a cell ended: by its reply, or by its kernel's exit or breach of the protocol."""

    reply: Reply | None
    exit: Exit | None
    violation: str | None
    stopped: Stopped | None
    execution_s: float

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
) -> CellEnd:
    """Run `code` and hand each output to `sink`, in order; a slow sink slows this cell alone.

    Returns when the cell has ended, whatever ended it. Cancelling it leaves the code running:
    whoever cancels ends the kernel.
    """
    begun = trio.current_time()
    died: Exit | None = None
    violation: str | None = None
    reply: Reply | None = None
    try:
        async with (
            kernel.execute(code, cell=cell_id, env=env) as cell,
            background_nursery() as nursery,
        ):
            nursery.start_soon(_watch, kernel, cell, timeout_s, grace_s, control)
            async for output in cell:
                await sink(output)
            reply = cell.reply
    except KernelDied as error:
        died = error.exit
    except ProtocolViolation as error:
        violation = str(error)
    stopped = control.stopped
    if reply is not None and reply.status == "ok" and stopped == "interrupted":
        stopped = None  # the code took the interrupt and ended as it wanted
    return CellEnd(reply, died, violation, stopped, trio.current_time() - begun)


async def _watch(
    kernel: Kernel, cell: Cell, timeout_s: float | None, grace_s: float, control: CellControl
) -> None:
    with trio.move_on_after(START_WAIT_S):
        await cell.started.wait()
    deadline = trio.current_time() + timeout_s if timeout_s is not None else math.inf
    while not control.climb:
        with trio.move_on_at(deadline) as clock:
            await control.asked.wait()
        if clock.cancelled_caught:
            control.stopped = "timeout"
            break
        control.asked = trio.Event()
        if not control.climb:  # read after the event was replaced: no ask is lost
            with trio.move_on_after(SIGNAL_S):
                await kernel.interrupt()
    if not control.kill:
        for step in (kernel.interrupt, kernel.terminate):
            with trio.move_on_after(SIGNAL_S):
                await step()
            with trio.move_on_after(grace_s):
                while not control.kill:
                    await control.asked.wait()
                    control.asked = trio.Event()
            if control.kill:
                break
    await kernel.kill()
