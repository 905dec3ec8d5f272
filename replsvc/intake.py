"""What a session takes in: which calls, under which conditions, and who waits for them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from replsvc import repl
from replsvc.call_log import CallLog
from replsvc.call_table import CallTable
from replsvc.calls import CallRequest, Draft, utc_now
from replsvc.config import Limits
from replsvc.errors import (
    InvalidInputError,
    QueueFullError,
    ReentrantCallError,
    ServiceStoppingError,
    SessionClosedError,
)
from replsvc.lasting import CallLeft, Lasting
from replsvc.redaction import Redactor
from replsvc.run import Run, Turns, current, fingerprint
from replsvc.store.log import EventLog


class Intake:
    """See the module. `take` takes a call to its end, in a task of its own."""

    def __init__(
        self,
        session_id: str,
        log: EventLog,
        limits: Limits,
        redactor: Redactor,
        turns: Turns,
        lasting: Lasting | None,
        take: Callable[[Run], Awaitable[None]],
    ) -> None:
        self._id, self._log, self._limits, self._redactor = session_id, log, limits, redactor
        self._turns, self._lasting, self._take = turns, lasting, take
        self.calls = CallTable(session_id, log)
        self.used_at = 0.0
        """When a call last began or ended, by trio's clock; `last_used_at` by everybody's."""
        self.last_used_at = utc_now()
        self._nursery: trio.Nursery | None = None
        self._closing = False

    def begin(self, nursery: trio.Nursery) -> None:
        """Take calls in from now on; they live in `nursery`."""
        self._nursery = nursery

    def close(self) -> None:
        """Refuse new calls: the session is about to end."""
        self._closing = True

    def end(self) -> None:
        """The session has ended: whoever still waits for a call hears of it."""
        self._nursery = None
        for run in self.calls.living():
            run.fail(self._ended_error())

    def _ended_error(self) -> SessionClosedError:
        return SessionClosedError(f"session {self._id} has ended", hint="Open another.")

    async def submit(self, request: CallRequest, *, after: Run | None = None) -> Run:
        """Begin a call; returns at once. The same id with the same request is the same call.

        Raises `ConflictError` for an id that another request has, `QueueFullError`,
        `ReentrantCallError` where code in this very kernel waits for whoever asks, and
        `SessionClosedError`; then nothing has changed. The call of a tool is looked at once `after`
        has been.
        """
        self.check_open()
        mark = None
        if request.id is not None:
            # Nobody can send a request again under an id that we make for it.
            mark = fingerprint(request)
            known = await self.calls.known(request.id, mark)
            if known is not None:
                return known
        self.check_open()
        self._check_limits(request)
        parent, takes_kernel = current(), request.tool == repl.NAME
        if takes_kernel:
            self._check_reentrant(parent)
        call_id = request.id or f"c_{secrets.token_urlsafe(12)}"
        run = Run(call_id, self._id, request, utc_now(), parent)
        run.before = after
        if takes_kernel:
            if self._turns.holder is not None and len(self._turns) >= self._limits.queue_limit:
                raise self._queue_full()
            self._turns.join(run)
        self.calls.add(run)
        run.log = CallLog(self._log, self._id, self._started_draft(run, mark))
        if self._lasting is not None and takes_kernel:
            # A tool's call is not begun again by another coordinator: nobody knows how far it got.
            self._lasting.call(run.id, request)
        if request.detach or self._lasting is not None:
            run.log.announce()
        self.used_at = trio.current_time()
        self.last_used_at = run.created_at
        assert self._nursery is not None
        self._nursery.start_soon(self._through, run)
        return run

    async def go_on(self, calls: Sequence[CallLeft]) -> None:
        """Take calls to their end that an earlier coordinator had, in their order.

        Raises `StorageError`.
        """
        assert self._nursery is not None
        first = True
        for call in calls:
            start = await self._log.find(self._id, call.id, "call_started")
            created_at = utc_now() if start is None else start.at
            run = Run(call.id, self._id, call.request, created_at)
            if start is None:
                draft = self._started_draft(run, fingerprint(call.request))
                run.log = CallLog(self._log, self._id, draft)
            else:
                run.log = CallLog.again(self._log, self._id, start)
            if call.request.tool == repl.NAME:
                run.resumes, first = first and call.begun, False
                self._turns.join(run)
            self.calls.add(run)
            assert self._lasting is not None
            self._lasting.call(run.id, run.request, begun=run.resumes)
            self._nursery.start_soon(self._through, run)

    async def _through(self, run: Run) -> None:
        try:
            await self._take(run)
        finally:
            if not run.ended:  # the session crashed: whoever waits must hear of it
                run.fail(self._ended_error())
            self._turns.leave(run)
            self.calls.ended(run)
            self.used_at = trio.current_time()

    def _started_draft(self, run: Run, mark: str | None) -> Draft:
        data = {
            "tool": run.request.tool,
            "title": run.title,
            "input": run.request.input,
            "timeout_s": run.request.timeout_s,
            "detach": run.request.detach,
            "created_at": run.created_at.isoformat(),
        }
        if run.parent_id is not None:
            data["parent_call_id"] = run.parent_id
        if mark is not None:
            data["fingerprint"] = mark
        clean = self._redactor.json(data) if self._redactor else data
        return Draft(kind="call_started", call_id=run.id, data=clean)

    def check_open(self) -> None:
        """Raises `ServiceStoppingError` or `SessionClosedError` where nothing can begin."""
        if self._closing:
            raise ServiceStoppingError(f"session {self._id} is closing", hint="Open another.")
        if self._nursery is None:
            raise self._ended_error()

    def _check_reentrant(self, parent: Run | None) -> None:
        """Refuse what could only begin when its own ancestor has ended."""
        while parent is not None and not parent.ended:
            if parent.session_id == self._id and parent.request.tool == repl.NAME:
                raise ReentrantCallError(
                    f"call {parent.id} has the kernel of session {self._id} "
                    "and waits for this one.",
                    hint="Return what the code needs, and let the code do the rest.",
                )
            parent = parent.parent

    def _check_limits(self, request: CallRequest) -> None:
        ours = self._limits.timeout_s
        if ours is None or request.timeout_s is None:
            return
        if request.timeout_s == "none" or request.timeout_s > ours:
            raise InvalidInputError(
                f"timeout_s can be at most {ours:g} in this session.",
                hint="Give less, or have the operator raise the limit.",
            )

    def _queue_full(self) -> QueueFullError:
        holder = self._turns.holder
        assert holder is not None
        since = holder.started_at or holder.created_at
        return QueueFullError(
            f"{len(self._turns)} calls wait already for the kernel of session {self._id}.",
            hint=f"Call {holder.id} runs since {since:%H:%M:%S} UTC: follow its output at "
            f"/v1/sessions/{self._id}/events, interrupt it, or wait.",
            details={
                "running": holder.id,
                "since": since.isoformat(),
                "running_title": holder.title,
            },
        )

    @asynccontextmanager
    async def following(self, run: Run) -> AsyncIterator[None]:
        """Be one who waits for `run`. When the last one leaves, an attached call is interrupted.

        That happens after `disconnect_grace_s` without anybody; a detached call, or one with
        `on_disconnect="continue"`, goes on.
        """
        run.followers += 1
        run.followed.set()
        try:
            yield
        finally:
            run.followers -= 1
            attached = not run.request.detach and run.request.on_disconnect == "interrupt"
            if run.followers == 0 and attached and not run.ended and self._nursery is not None:
                run.followed = trio.Event()
                self._nursery.start_soon(self._abandoned, run)

    async def _abandoned(self, run: Run) -> None:
        with trio.move_on_after(self._limits.disconnect_grace_s):
            await run.followed.wait()
        if run.followers == 0 and not run.ended:
            run.control.cancel()
