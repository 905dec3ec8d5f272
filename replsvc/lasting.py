"""Sessions that survive a restart: what the next coordinator needs of one, and what a log says.

Requests are kept with the kernel's holder, in memory: the log has them without their secrets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from replsvc.calls import Call, CallRequest, Cause, Draft, Event, EventKind, TextContent
from replsvc.session_values import Mount
from replsvc.store.log import EventLog
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.held import Item
from replsvc_kernels.backends.surviving import SurvivingServers
from replsvc_kernels.kernel import Kernel, LaunchSpec
from replsvc_kernels.messages import Kept, SetupReport, StreamName

OUTPUT: tuple[EventKind, ...] = ("output",)
STARTED: tuple[EventKind, ...] = ("kernel_started",)
STOPPED = Cause(kind="service_stop", message="the service was stopped while it ran")


@dataclass(frozen=True, slots=True)
class CallLeft:
    """A call that had not ended: its id, its request, when it was asked for, and its turn."""

    id: str
    request: CallRequest
    turn: int
    begun: bool


@dataclass(slots=True)
class SessionLeft:
    """A session whose kernel was left, as an earlier coordinator had it."""

    id: str
    mark: str
    mounts: tuple[Mount, ...]
    pid: int
    image: int | None
    calls: list[CallLeft] = field(default_factory=list)


class Lasting:
    """What of one session is held besides its kernel. Names begin with `sessions/` and `calls/`."""

    def __init__(
        self, servers: SurvivingServers, session_id: str, mark: str, mounts: Sequence[Mount]
    ) -> None:
        self._servers, self._id, self._mark = servers, session_id, mark
        self._mounts = [mount.model_dump() for mount in mounts]
        self._turns: dict[str, int] = {}

    def ready(self, kernel: Kernel, image: int | None) -> None:
        """A kernel of the session is set up: from now on it can be taken over."""
        facts = {"mark": self._mark, "mounts": self._mounts, "pid": kernel.info.pid}
        fds = () if image is None else (image,)
        self._servers.holder.put(f"sessions/{self._id}", fds, facts=facts)

    def call(self, call_id: str, request: CallRequest, *, begun: bool = False) -> None:
        """A call has been asked for, or has `begun`: then it is never run by another kernel."""
        turn = self._turns.setdefault(call_id, len(self._turns))
        # What was not set must not look as if it had been: `timeout_s` tells these apart.
        body = request.model_dump(mode="json", exclude_unset=True)
        facts = {"request": body, "turn": turn, "begun": begun}
        self._servers.holder.put(f"calls/{self._id}/{call_id}", facts=facts)

    def ended(self, call_id: str) -> None:
        """A call's end is in the log."""
        self._servers.holder.drop(f"calls/{self._id}/{call_id}")

    def drop(self) -> None:
        """The session has ended."""
        for name in ("sessions", "calls"):
            self._servers.holder.drop(f"{name}/{self._id}")


def sessions_left(items: Mapping[str, Item]) -> dict[str, SessionLeft]:
    """The sessions among what was held, by id."""
    found: dict[str, SessionLeft] = {}
    for name, item in items.items():
        kind, _, rest = name.partition("/")
        facts = item.facts
        if kind == "sessions":
            mounts = tuple(Mount.model_validate(one) for one in facts["mounts"])
            image = item.fds[0] if item.fds else None
            found[rest] = SessionLeft(rest, facts["mark"], mounts, facts["pid"], image)
    for name, item in items.items():
        kind, _, rest = name.partition("/")
        if kind == "calls":
            session_id, _, call_id = rest.partition("/")
            if session_id in found:
                request = CallRequest.model_validate(item.facts["request"])
                call = CallLeft(call_id, request, item.facts["turn"], item.facts["begun"])
                found[session_id].calls.append(call)
    for session in found.values():
        session.calls.sort(key=lambda call: call.turn)
    return found


class AdoptedOnce(Backend):
    """Opens the kernel that was left, and from then on new ones, as `backend` does."""

    def __init__(
        self,
        servers: SurvivingServers,
        backend: Backend,
        name: str,
        kept: Mapping[str, Kept],
        running: str | None,
    ) -> None:
        self.name = backend.name
        self._servers, self._backend = servers, backend
        self._left: tuple[str, Mapping[str, Kept], str | None] | None = (name, kept, running)

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        left, self._left = self._left, None
        if left is None:
            async with self._backend.open(spec) as kernel:
                yield kernel
        else:
            name, kept, running = left
            async with self._servers.adopt(name, spec, kept, running) as adopted:
                yield adopted


@dataclass(frozen=True, slots=True)
class Adopted:
    """A session's kernel that was left: how it is opened, and what is known of it.

    `resumed` is set when the cell that ran has ended; until then the kernel is that cell's, alive
    or dead.
    """

    backend: Backend
    generation: int
    reports: tuple[SetupReport, ...]
    resumed: trio.Event


# What a log says


async def outputs(log: EventLog, session_id: str, call_id: str) -> AsyncIterator[Event]:
    """A call's output events, in their order. Raises `StorageError`."""
    after = 0
    while events := await log.read(session_id, after, call_id=call_id, kinds=OUTPUT):
        for event in events:
            yield event
        after = events[-1].seq


async def kept_of(log: EventLog, session_id: str, calls: Iterable[str]) -> dict[str, Kept]:
    """How much of the output of each of these calls is in the log. Raises `StorageError`."""
    found = {}
    for call_id in calls:
        streams: dict[StreamName, int] = {}
        mark = 0
        async for event in outputs(log, session_id, call_id):
            if (upto := event.data.get("upto")) is not None:
                streams[event.data["name"]] = upto
            mark = max(mark, event.data.get("mark", 0))
        found[call_id] = Kept(streams, mark)
    return found


async def last_start(log: EventLog, session_id: str) -> tuple[int, tuple[SetupReport, ...]]:
    """The newest kernel's generation, and what its setup code did. Raises `StorageError`."""
    after, newest = 0, None
    while events := await log.read(session_id, after, kinds=STARTED):
        newest, after = events[-1], events[-1].seq
    if newest is None:
        return 1, ()
    return newest.data["generation"], tuple(
        SetupReport(
            one["extension"], tuple(one["names"]), one["output"].encode(), one["duration_s"]
        )
        for one in newest.data["setup"]
    )


async def end_calls(log: EventLog, session_id: str, but: Collection[str] = ()) -> None:
    """Say of every call that had not ended, `but` these, that the service stopped.

    Raises `StorageError`.
    """
    started: dict[str, Event] = {}
    after = 0
    while events := await log.read(session_id, after, kinds=("call_started", "call_finished")):
        for event in events:
            assert event.call_id is not None
            if event.kind == "call_started":
                started[event.call_id] = event
            else:
                started.pop(event.call_id, None)
        after = events[-1].seq
    drafts = [_ended(session_id, event) for id_, event in started.items() if id_ not in but]
    if drafts:
        await log.append(session_id, drafts).wait()


def _ended(session_id: str, start: Event) -> Draft:
    data: dict[str, Any] = start.data
    assert start.call_id is not None
    call = Call(
        id=start.call_id,
        session_id=session_id,
        seq=start.seq,
        tool=data["tool"],
        title=data["title"],
        status="killed",
        is_error=True,
        cause=STOPPED,
        content=(TextContent(text=f"[killed: {STOPPED.message}]"),),
        state_lost=True,
        created_at=data["created_at"],
    )
    return Draft(kind="call_finished", call_id=call.id, data={"call": call.model_dump(mode="json")})
