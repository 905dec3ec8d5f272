"""Kernels that wait for a session: forked, isolated, connected, and never used by anybody.

A kernel leaves the pool once, for one session, and ends with it. One that died, or whose server
did, is dropped. The pool is filled in the background, one kernel at a time, while nobody waits for
one; how many it holds follows from what was opened lately.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from replsvc_kernels._wire import WireKernel
from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.kernel import KernelError, LaunchSpec, Resources
from replsvc_kernels.messages import Limits

log = logging.getLogger("replsvc")

# Demand is what was opened in so many seconds.
RECENT_S = 10.0
# Whoever has got a kernel runs something in it at once: that goes first.
AFTER_YOU_S = 0.01
# They go to the guest in one packet, which takes 64 KiB.
MOST_ENVIRONMENT_BYTES = 48 * 1024
# Of the machine's memory, what must be available for a kernel that nobody has asked for.
LEAST_AVAILABLE = 0.1


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How many unused kernels an environment has: at least, and with demand at most. 0: none."""

    least: int = 0
    most: int = 0


NO_POOL = PoolSize()


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a `LaunchSpec` is fixed when its kernel is forked."""

    resources: Resources
    limits: Limits
    close_grace_s: float

    def spec(self, python: str, workspace: str, startup_timeout_s: float) -> LaunchSpec:
        """What launches an unused kernel of this shape; its `workspace` is none yet."""
        return LaunchSpec(
            workspace,
            python=python,
            startup_timeout_s=startup_timeout_s,
            close_grace_s=self.close_grace_s,
            limits=self.limits,
            resources=self.resources,
        )


def shape_of(spec: LaunchSpec) -> Shape:
    """The shape of a spec."""
    return Shape(spec.resources, spec.limits, spec.close_grace_s)


def can_be_sent(env: Mapping[str, str]) -> bool:
    """Whether a guest can be told these variables; others are set, or refused, at the fork."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return False
    return len(json.dumps(dict(env))) <= MOST_ENVIRONMENT_BYTES


def wanted(opened: Mapping[Shape, Sequence[float]], now: float, size: PoolSize) -> dict[Shape, int]:
    """How many kernels of each shape to have ready, by the times at which some were opened.

    As many as were opened in the last `RECENT_S` seconds, less one: who opens a session and no more
    has no use for a second kernel. There are at least `size.least` of the shape that was asked for
    last, and at most `size.most` of all; later shapes come first.
    """
    sizes: dict[Shape, int] = {}
    left = size.most
    for shape, times in sorted(opened.items(), key=lambda one: one[1][-1], reverse=True):
        recent = sum(now - at < RECENT_S for at in times)
        least = 0 if sizes else size.least
        sizes[shape] = min(left, max(recent - 1, least))
        left -= sizes[shape]
    return sizes


def memory_is_left(meminfo: str | None = None) -> bool:
    """Whether the machine has memory for what nobody has asked for; `meminfo` as in `/proc`."""
    text = Path("/proc/meminfo").read_text() if meminfo is None else meminfo
    fields = dict(line.split(":", 1) for line in text.splitlines())
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return available > LEAST_AVAILABLE * total


@dataclass(frozen=True, slots=True)
class Made:
    """A kernel with what its backend knows of it. `server_gone`: its server has ended."""

    kernel: WireKernel
    process: ForkedProcess
    user: int
    server_gone: trio.Event


class Spare:
    """A kernel in the pool, owned by a task of the pool's until it has ended."""

    def __init__(self, shape: Shape, made: Made) -> None:
        self.shape, self.made = shape, made
        self.taken = False
        self.leave, self.ended = trio.Event(), trio.Event()
        self.scope = trio.CancelScope()
        self.failure: BaseException | None = None

    @property
    def good(self) -> bool:
        """Whether it lives and has a server."""
        return self.made.kernel.exit is None and not self.made.server_gone.is_set()


class Pool:
    """See the module. `run` in a nursery fills it."""

    def __init__(
        self,
        make: Callable[[Shape], AbstractAsyncContextManager[Made]],
        size: PoolSize,
        has_room: Callable[[], bool],
    ) -> None:
        """`make` makes an unused kernel, `has_room` says whether there may be another one now."""
        self._make, self._size, self._has_room = make, size, has_room
        self._opened: dict[Shape, deque[float]] = {}
        self._spares: dict[Shape, deque[Spare]] = {}
        self._waiting = 0
        self._failed = False
        self._changed = trio.Event()

    # Demand

    def expect(self, shape: Shape) -> None:
        """Somebody will ask for this shape."""
        if self._size.most and shape not in self._opened:
            self._opened[shape] = deque([-RECENT_S], maxlen=self._size.most + 1)
            self._change()

    @contextmanager
    def opening(self, shape: Shape | None = None) -> Iterator[Callable[[], None]]:
        """While the body runs, until it calls what it is given, somebody waits for a kernel.

        Nothing is made ahead then. With a shape it counts as demand.
        """
        if shape is not None and self._size.most:
            self._opened.setdefault(shape, deque(maxlen=self._size.most + 1))
            self._opened[shape].append(trio.current_time())
        self._failed = False
        self._waiting += 1
        over = False

        def served() -> None:
            nonlocal over
            if not over:
                over = True
                self._waiting -= 1
                self._change()

        try:
            yield served
        finally:
            served()

    def take(self, shape: Shape) -> Spare | None:
        """A kernel of this shape for its one and only session; None when there is none."""
        spares = self._spares.get(shape, deque())
        while spares:
            spare = spares.popleft()
            if spare.good:
                spare.taken = True
                return spare
            spare.leave.set()
        return None

    @asynccontextmanager
    async def handed_over(self, spare: Spare) -> AsyncIterator[Made]:
        """A kernel that was taken, for the body; it ends when that does."""
        try:
            with spare.scope:
                yield spare.made
        finally:
            spare.leave.set()
            with trio.CancelScope(shield=True):
                await spare.ended.wait()
        if spare.failure is not None:
            raise spare.failure

    # Supply

    async def run(self) -> None:
        """Fill the pool, and empty it, until cancelled; then nothing of it is left."""
        if not self._size.most:
            return
        async with trio.open_nursery() as nursery:
            while True:
                # Without a kernel too many there is nothing that only time changes.
                pause = RECENT_S if self._surplus() else float("inf")
                with trio.move_on_after(pause):
                    await self._changed.wait()
                self._changed = trio.Event()
                await trio.sleep(AFTER_YOU_S)
                self._shrink()
                # Whoever waits for a kernel says when they have it.
                if self._waiting == 0 and (shape := self._short()) and self._has_room():
                    await nursery.start(self._keep, shape)

    def _surplus(self) -> bool:
        """Whether there are more kernels than without any demand."""
        return sum(map(len, self._spares.values())) > self._size.least

    def _shrink(self) -> None:
        now = trio.current_time()
        sizes = wanted(self._opened, now, self._size)
        for shape, spares in list(self._spares.items()):
            while len(spares) > sizes.get(shape, 0):
                spares.pop().leave.set()
            if not spares:
                del self._spares[shape]
        # Anybody can ask for any shape: those that nobody asks for any more are forgotten.
        for shape in sorted(self._opened, key=lambda one: self._opened[one][-1])[:-1]:
            if now - self._opened[shape][-1] >= RECENT_S:
                del self._opened[shape]

    def _short(self) -> Shape | None:
        """The shape that a kernel is to be made of."""
        if self._failed:
            return None
        for shape, size in wanted(self._opened, trio.current_time(), self._size).items():
            if len(self._spares.get(shape, ())) < size:
                return shape
        return None

    async def _keep(
        self, shape: Shape, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Make a kernel and own it; says that it has started when it is in the pool."""
        spare: Spare | None = None
        try:
            async with self._make(shape) as made:
                spare = Spare(shape, made)
                self._spares.setdefault(shape, deque()).append(spare)
                # There may be room for another one.
                self._change()
                task_status.started()
                await self._until_left(spare)
        except Exception as error:
            # Who opens the next one hears why; until then it is not tried again.
            self._failed = True
            if not isinstance(error, KernelError):
                log.exception("a kernel that nobody has yet can't be kept")
            if spare is not None:
                spare.failure = error
                spare.scope.cancel()
        finally:
            if spare is None:
                task_status.started()
            else:
                if spare in (spares := self._spares.get(shape, deque())):
                    spares.remove(spare)
                spare.ended.set()
            self._change()

    async def _until_left(self, spare: Spare) -> None:
        async with trio.open_nursery() as nursery:

            async def dropped(event: Callable[[], object]) -> None:
                await event()  # type: ignore[misc]
                if not spare.taken:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(dropped, spare.made.kernel.wait_exited)
            nursery.start_soon(dropped, spare.made.server_gone.wait)
            await spare.leave.wait()
            nursery.cancel_scope.cancel()

    def _change(self) -> None:
        self._changed.set()
