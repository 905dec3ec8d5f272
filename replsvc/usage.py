"""How much a session uses, of what nobody but us holds it to: looked at only while it is used."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import trio

from replsvc.config import Limits
from replsvc.kernel_slot import KernelSlot
from replsvc_kernels.messages import Exit
from replsvc_kernels.workspaces import Workspace

# The soonest that the next look comes, and how much of a processor a walk over files may take.
CPU_PAUSE_S, DISK_PAUSE_S = 0.02, 1.0
DISK_SHARE = 0.05
# Looks at what does not change come more and more seldom, up to this factor.
SELDOM = 32


class Watch:
    """Looks at one measure while the session is used, and for as long after as it grows.

    At rest nothing runs. `measure` gives what is used now, or None when there is nothing to
    measure; `pause` how long to wait, given what was used and what the last look took; `over` is
    called with what is used when that is more than `limit`, unless it has become less meanwhile:
    who makes room is let alone.
    """

    def __init__(
        self,
        limit: float,
        measure: Callable[[], Awaitable[float | None]],
        pause: Callable[[float, float], float],
        over: Callable[[float], Awaitable[None]],
        busy: Callable[[], bool],
    ) -> None:
        self._limit, self._measure, self._pause = limit, measure, pause
        self._over, self._busy = over, busy
        self._woken = trio.Event()

    def wake(self) -> None:
        """The session is used."""
        self._woken.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._woken.wait()
            before: float | None = None
            took_s, seldom = 0.0, 1
            while True:
                self._woken = trio.Event()
                await trio.sleep(seldom * self._pause(before or 0.0, took_s))
                begun = trio.current_time()
                used = await self._measure()
                took_s = trio.current_time() - begun
                if used is not None and used > self._limit and used >= (before or 0.0):
                    await self._over(used)
                seldom = min(SELDOM, 2 * seldom) if used == before else 1
                if used in (before, None) and not self._woken.is_set() and not self._busy():
                    break
                before = used


def watches(
    limits: Limits, place: Workspace, slot: KernelSlot, busy: Callable[[], bool]
) -> tuple[Watch, ...]:
    """What is to be watched of a session; over a limit, its kernel is ended with that cause."""
    found = []
    if limits.cpu_s is not None:
        found.append(_cpu(limits.cpu_s, limits.cpu_cores, slot, busy))
    if place.size_bytes is not None and not place.hard:
        found.append(_disk(place, place.size_bytes, slot, busy))
    return tuple(found)


def _cpu(limit: float, cores: float | None, slot: KernelSlot, busy: Callable[[], bool]) -> Watch:
    at_a_time = min(cores or 1e9, os.cpu_count() or 1)

    async def measure() -> float | None:
        await trio.lowlevel.checkpoint()
        return slot.current.kernel.cpu_s() if slot.current is not None else None

    async def over(used: float) -> None:
        if slot.current is not None:
            await slot.current.kernel.kill(Exit(cause="cpu", limit=limit, peak=round(used, 3)))

    def pause(used: float, _took_s: float) -> float:
        # No sooner can the rest be used up.
        return max(CPU_PAUSE_S, (limit - used) / at_a_time)

    return Watch(limit, measure, pause, over, busy)


def _disk(place: Workspace, limit: int, slot: KernelSlot, busy: Callable[[], bool]) -> Watch:
    async def over(used: float) -> None:
        if slot.current is not None:
            await slot.current.kernel.kill(Exit(cause="disk", limit=limit, peak=used))

    def pause(_used: float, took_s: float) -> float:
        return max(DISK_PAUSE_S, took_s / DISK_SHARE)

    return Watch(limit, place.used, pause, over, busy)
