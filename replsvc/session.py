"""One session: its queue, its kernel, its extensions, its log; lifetimes nested in one nursery.

A `Session` is run by the coordinator as one task. Every method may be called from any task of the
same trio run, and cancelled; what a cancelled method does to a running call is said in its
docstring.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio
from pydantic import ValidationError

from replsvc import causes, repl, workspace
from replsvc.artifacts import Artifacts
from replsvc.background_log import BackgroundLog
from replsvc.batches import run_batch
from replsvc.call_log import CallLog
from replsvc.call_table import CallTable
from replsvc.calls import Batch, Call, CallRequest, Cause, Draft, Event, Status, utc_now
from replsvc.cell import CellEnd
from replsvc.errors import (
    ExtensionDisposeError,
    InvalidInputError,
    QueueFullError,
    ReentrantCallError,
    ReplsvcError,
    ServiceStoppingError,
    SessionClosedError,
)
from replsvc.extension.context import SessionView
from replsvc.extension.describe import BaseFacts, compose
from replsvc.extension.runtime import Runtime
from replsvc.interaction import Interaction
from replsvc.kernel_slot import KernelSlot, Started, text_of
from replsvc.lasting import CallLeft
from replsvc.pipeline import run_call
from replsvc.redaction import Redactor
from replsvc.run import Run, Turns, current, fingerprint
from replsvc.session_parts import SessionParts
from replsvc.session_values import (
    ExtensionInfo,
    InputAnswer,
    InputInfo,
    InterruptResult,
    SessionInfo,
    State,
    ToolInfo,
    first_problem,
)
from replsvc.store.pending import Pending
from replsvc.usage import watches
from replsvc_kernels.kernel import LastingKernel
from replsvc_kernels.messages import Exit, SetupReport

# `interrupt` answers within a second, whatever the kernel does.
INTERRUPT_ANSWER_S = 0.8
IN_CELL: frozenset[Status] = frozenset(("running", "waiting"))
"""A call with one of these has a cell that can be stopped."""


class Session:
    """See the module. Made by `Coordinator.open`; closed by `Coordinator.close`."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self.id, self.log, self.limits = parts.id, parts.log, parts.limits
        self.truncation = parts.request.truncation
        self.redactor = Redactor(
            secret for extension in parts.extensions for secret in extension.secrets
        )
        self.artifacts = Artifacts(
            parts.id, parts.workspace, parts.notices, parts.files, parts.limits, self.redactor
        )
        self._background = BackgroundLog(
            parts.id, parts.log, self.redactor, parts.limits.max_log_bytes
        )
        self.runtime = Runtime(
            parts.extensions,
            SessionView(parts.id, parts.request.name, parts.tenant),
            self.redactor,
            parts.limits.setup_timeout_s or math.inf,
        )
        self.turns = Turns()
        self.interaction = Interaction(parts.id)
        self.fresh_each_call = parts.request.lifetime == "call"
        self.created_at = self.last_used_at = utc_now()
        self._state: State = "starting"
        self._has_guest = True
        self._reports: dict[str, SetupReport] = {}
        self._calls = CallTable(parts.id, parts.log)
        self._slot = KernelSlot(
            parts.plan, self.redactor, on_started=self._started, on_died=self._died
        )
        self._watches = watches(
            parts.limits, parts.place, self._slot, lambda: self.turns.holder is not None
        )
        self._nursery: trio.Nursery | None = None
        self._used_at = 0.0
        self._closing = False
        self.lasting = parts.lasting
        self.closed = trio.Event()
        self.scope = trio.CancelScope()

    # Lifetime

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled. Reports `started` when the first kernel is ready.

        Raises what prevented that: `ExtensionSetupError`, `StartupTimeoutError`, ...; then nothing
        of the session is left. Extensions' resources outlive the kernel.
        """
        try:
            async with self.runtime.resources.held():
                await self._live_with_resources(task_status)
        finally:
            if self._state == "starting":
                self._state = "failed"
            self.closed.set()

    @property
    def not_disposed(self) -> ExtensionDisposeError | None:
        """The first resource of an extension that could not be disposed of, once it is closed."""
        return self.runtime.resources.failure

    async def _live_with_resources(self, task_status: trio.TaskStatus[None]) -> None:
        first: ReplsvcError | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._slot.run)
                try:
                    await self._slot.acquire()
                except ReplsvcError as error:
                    first = error
                    nursery.cancel_scope.cancel()
                else:
                    self._state = "idle"
                    task_status.started()
                    nursery.start_soon(self._watch_idle)
                    nursery.start_soon(self._watch_age)
                    for watch in self._watches:
                        nursery.start_soon(watch.run)
        finally:
            self._state = "failed" if first is not None else "stopped"
            self._nursery = None
            for run in self._calls.living():
                run.fail(SessionClosedError(f"session {self.id} has ended", hint="Open another."))
        if first is not None:
            raise first

    async def stop_work(self, because: Cause | None = None) -> None:
        """Refuse new calls, end those that wait or run with a result each, then the kernel.

        `because` is the limit that the session has reached; without one it was closed.
        """
        self._closing = True
        for run in self.turns.waiting():
            run.control.cancel()
        holder = self.turns.holder
        for run in self._calls.living():
            if run is not holder and run.request.tool == repl.NAME:
                continue
            if because is not None:
                run.control.end_for(because)
            else:
                run.control.end("closed")
        for run in self._calls.living():
            await run.wait_ended()
        # Released and not cancelled: a kernel that is asked to end runs its exit handlers.
        await self._slot.release()

    def _started(self, started: Started) -> None:
        self._reports = {report.name: report for report in started.reports}
        self._has_guest = started.kernel.info.has_guest
        assert self._nursery is not None
        self._nursery.start_soon(self._background.run, started.kernel)
        # Setup code runs before capture: what it printed is in no result, but here.
        setup = [
            {
                "extension": report.name,
                "names": list(report.names),
                "duration_s": round(report.duration_s, 6),
                "output": self.redactor.text(text_of(report.output)),
            }
            for report in started.reports
        ]
        if started.adopted:
            self._event("session_changed", reason="adopted", generation=started.generation)
        else:
            self._event("kernel_started", generation=started.generation, setup=setup)
        if self.lasting is not None:
            self.lasting.ready(started.kernel, self._parts.place.image)

    def _died(self, started: Started, exit_: Exit) -> None:
        cause = causes.exit_cause(exit_)
        self._event(
            "kernel_died",
            generation=started.generation,
            cause=cause.model_dump(mode="json", exclude_none=True),
        )

    def _event(self, kind: Literal["kernel_started", "kernel_died", "session_changed"],
               **data: Any) -> Pending[tuple[Event, ...]]:  # fmt: skip
        return self.log.append(self.id, [Draft(kind=kind, data=data)])

    async def _watch_idle(self) -> None:
        """End the kernel of a session that nobody uses; the next call starts another."""
        idle_s = self.limits.idle_timeout_s
        if idle_s is None:
            return
        self._used_at = trio.current_time()
        while True:
            # By the clock, not woken by each call: that would be a good part of a small one.
            if (due := self._used_at + idle_s) > trio.current_time():
                await trio.sleep_until(due)
                continue
            if not self._calls.living() and self._slot.current is not None:
                self._state = "stopped"
                await self._slot.release()
                cause = causes.idle(idle_s, trio.current_time() - self._used_at)
                self._event(
                    "session_changed",
                    state="stopped",
                    reason="idle",
                    cause=cause.model_dump(mode="json", exclude_none=True),
                )
            await trio.sleep(idle_s)

    async def _watch_age(self) -> None:
        """End a session that has lived long enough, as if it were closed."""
        wall_s = self.limits.wall_s
        if wall_s is None:
            return
        since = trio.current_time()
        await trio.sleep(wall_s)
        cause = causes.session_too_old(wall_s, trio.current_time() - since)
        await self.stop_work(cause)
        self._event(
            "session_changed",
            state="closed",
            reason="wall",
            cause=cause.model_dump(mode="json", exclude_none=True),
        )
        self.scope.cancel()

    # What the pipeline needs

    @property
    def workspace_is_hard(self) -> bool:
        """See `pipeline.Host`."""
        return self._parts.place.hard

    async def kernel(self) -> Started:
        """See `pipeline.Host`."""
        self._state = "busy"
        for watch in self._watches:
            watch.wake()
        return await self._slot.acquire()

    def kernel_done(self, end: CellEnd | None) -> None:
        """See `pipeline.Host`."""
        self._state = "idle"
        if self.fresh_each_call and end is not None:
            self._slot.replace()

    # Calls

    async def run(self, code: str, *, title: str = "", **fields: Any) -> Call:
        """Run `code` with the `repl` tool; `fields` are those of `CallRequest`."""
        return await self.call(repl.NAME, {"code": code, "title": title}, **fields)

    async def call(self, tool: str, input: dict[str, Any], **fields: Any) -> Call:  # noqa: A002
        """Use a tool and wait for its result.

        Failing code, limits and a dead kernel are statuses of the result. Raises
        `InvalidInputError` for wrong `fields`, `QueueFullError`, `ConflictError`,
        `SessionClosedError`, `StorageError`. Cancelling it cancels the call: the cell is
        interrupted, then ended if it does not listen, and only then does this return.
        """
        try:
            request = CallRequest(tool=tool, input=input, **fields)
        except ValidationError as error:
            raise InvalidInputError(f"call: {first_problem(error)}") from error
        return await self.result(await self.submit(request))

    async def batch(self, requests: Sequence[CallRequest], *, attached: bool = False) -> Batch:
        """Use tools in groups: neighbours run together, one that is sequential (`repl`) alone.

        Results are in the order of `requests`. Errors stop nothing; after a cancelled call those
        that were not begun are cancelled. Raises as `call`; the error's details then have the ids
        of the calls that ended before, as `ended`. Cancelling it cancels the calls; `attached` ones
        go on for `disconnect_grace_s`, for whoever comes back.
        """

        async def wait(run: Run) -> Call:
            async with self.following(run):
                return await run.wait()

        return await run_batch(self, requests, wait if attached else self.result)

    def is_sequential(self, tool: str) -> bool:
        """Whether calls of this tool run alone in a batch."""
        bound = self.runtime.tools.get(tool)
        return tool == repl.NAME if bound is None else bound.tool.execution == "sequential"

    async def result(self, run: Run) -> Call:
        """What it becomes. Raises what made the service fail it.

        Cancelling this cancels the call, and waits for its end.
        """
        try:
            return await run.wait()
        except trio.Cancelled:
            run.control.cancel()
            with trio.CancelScope(shield=True):
                await run.wait_ended()
            raise

    async def submit(self, request: CallRequest, *, after: Run | None = None) -> Run:
        """Begin a call; returns at once. The same id with the same request is the same call.

        Raises `ConflictError` for an id that another request has, `QueueFullError`,
        `ReentrantCallError` where code in this very kernel waits for whoever asks, and
        `SessionClosedError`; then nothing has changed. The call of a tool is looked at once `after`
        has been.
        """
        self._check_open()
        mark = None
        if request.id is not None:
            # Nobody can send a request again under an id that we make for it.
            mark = fingerprint(request)
            known = await self._calls.known(request.id, mark)
            if known is not None:
                return known
        self._check_open()
        self._check_limits(request)
        parent, takes_kernel = current(), request.tool == repl.NAME
        if takes_kernel:
            self._check_reentrant(parent)
        call_id = request.id or f"c_{secrets.token_urlsafe(12)}"
        run = Run(call_id, self.id, request, utc_now(), parent)
        run.before = after
        if takes_kernel:
            if self.turns.holder is not None and len(self.turns) >= self.limits.queue_limit:
                raise self._queue_full()
            self.turns.join(run)
        self._calls.add(run)
        run.log = CallLog(self.log, self.id, self._started_draft(run, mark))
        if self.lasting is not None and takes_kernel:
            # A tool's call is not begun again by another coordinator: nobody knows how far it got.
            self.lasting.call(run.id, request)
        if request.detach or self.lasting is not None:
            run.log.announce()
        self._used_at = trio.current_time()
        self.last_used_at = run.created_at
        assert self._nursery is not None
        self._nursery.start_soon(self._take_through, run)
        return run

    async def go_on(self, calls: Sequence[CallLeft]) -> None:
        """Take calls to their end that an earlier coordinator had, in their order.

        Raises `StorageError`.
        """
        assert self._nursery is not None
        first = True
        for call in calls:
            start = await self.log.find(self.id, call.id, "call_started")
            created_at = utc_now() if start is None else start.at
            run = Run(call.id, self.id, call.request, created_at)
            if start is None:
                draft = self._started_draft(run, fingerprint(call.request))
                run.log = CallLog(self.log, self.id, draft)
            else:
                run.log = CallLog.again(self.log, self.id, start)
            if call.request.tool == repl.NAME:
                run.resumes, first = first and call.begun, False
                self.turns.join(run)
            self._calls.add(run)
            assert self.lasting is not None
            self.lasting.call(run.id, run.request, begun=run.resumes)
            self._nursery.start_soon(self._take_through, run)

    async def _take_through(self, run: Run) -> None:
        try:
            await run_call(run, self)
            if self.lasting is not None and run.request.tool == repl.NAME:
                self.lasting.ended(run.id)
                if (current := self._slot.current) is not None:
                    assert isinstance(current.kernel, LastingKernel)
                    current.kernel.keep(run.id)
        finally:
            if run.resumes and (adopted := self._parts.plan.adopted) is not None:
                adopted.resumed.set()
            if not run.ended:  # the session crashed: whoever waits must hear of it
                run.fail(SessionClosedError(f"session {self.id} has ended", hint="Open another."))
            self.turns.leave(run)
            self._calls.ended(run)
            self._used_at = trio.current_time()

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
        clean = self.redactor.json(data) if self.redactor else data
        return Draft(kind="call_started", call_id=run.id, data=clean)

    def _check_open(self) -> None:
        if self._closing:
            raise ServiceStoppingError(f"session {self.id} is closing", hint="Open another.")
        if self._nursery is None:
            raise SessionClosedError(f"session {self.id} has ended", hint="Open another.")

    def _check_reentrant(self, parent: Run | None) -> None:
        """Refuse what could only begin when its own ancestor has ended."""
        while parent is not None and not parent.ended:
            if parent.session_id == self.id and parent.request.tool == repl.NAME:
                raise ReentrantCallError(
                    f"call {parent.id} has the kernel of session {self.id} and waits for this one.",
                    hint="Return what the code needs, and let the code do the rest.",
                )
            parent = parent.parent

    def _check_limits(self, request: CallRequest) -> None:
        ours = self.limits.timeout_s
        if ours is None or request.timeout_s is None:
            return
        if request.timeout_s == "none" or request.timeout_s > ours:
            raise InvalidInputError(
                f"timeout_s can be at most {ours:g} in this session.",
                hint="Give less, or have the operator raise the limit.",
            )

    def _queue_full(self) -> QueueFullError:
        holder = self.turns.holder
        assert holder is not None
        since = holder.started_at or holder.created_at
        return QueueFullError(
            f"{len(self.turns)} calls wait already for the kernel of session {self.id}.",
            hint=f"Call {holder.id} runs since {since:%H:%M:%S} UTC: follow its output at "
            f"/v1/sessions/{self.id}/events, interrupt it, or wait.",
            details={
                "running": holder.id,
                "since": since.isoformat(),
                "running_title": holder.title,
            },
        )

    async def find(self, call_id: str) -> Call:
        """The call as it is now. Raises `CallNotFoundError`, `StorageError`."""
        return await self._calls.find(call_id)

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
        with trio.move_on_after(self.limits.disconnect_grace_s):
            await run.followed.wait()
        if run.followers == 0 and not run.ended:
            run.control.cancel()

    # Answers

    def inputs(self) -> tuple[InputInfo, ...]:
        """What calls with `stdin=True` ask and wait for, in the order of asking."""
        return tuple(question.value for question in self.interaction.pending("input"))

    async def answer(self, input_id: str, text: str | None) -> None:
        """Answer what a call asks: one line, without its end, or None for the end of input.

        The first answer counts. It is not logged, and not kept. Raises `AlreadyAnsweredError` for
        a question that is over, `QuestionNotFoundError`, and `InvalidInputError` for a text that is
        no line or longer than 64 Ki characters.
        """
        try:
            checked = InputAnswer(text=text)
        except ValidationError as error:
            # Without its cause, which has the text in it.
            raise InvalidInputError(f"answer: {first_problem(error)}") from None
        await trio.lowlevel.checkpoint()
        self.interaction.answer("input", input_id, checked.text)

    # Control

    async def interrupt(self, *, force: bool = False) -> InterruptResult:
        """Interrupt the running cell; queued ones stay. Answers within a second.

        `force` goes on to terminate and kill when the code does not listen.
        """
        holder = self.turns.holder
        if holder is None or holder.status not in IN_CELL:
            return InterruptResult(delivered=False, still_running=holder is not None)
        holder.control.interrupt(force=force)
        with trio.move_on_after(INTERRUPT_ANSWER_S):
            await holder.wait_ended()
        return InterruptResult(delivered=True, still_running=not holder.ended)

    async def restart(self) -> None:
        """A new kernel with its setup code; a running cell is ended, queued ones run on it.

        Raises `ExtensionSetupError` and what else a start can raise, and `StorageError`.
        """
        await self._start_anew("restart")

    async def reset(self) -> None:
        """As `restart`, with an empty workspace (files given at creation are put there again)."""

        async def remake() -> None:
            self.artifacts.close()
            try:
                await self._parts.place.renew()
            except OSError as error:
                raise workspace.can_not_be_made(error) from error
            await self.fill_workspace()

        await self._start_anew("reset", remake)

    async def fill_workspace(self) -> None:
        """Put the request's files into the empty workspace. Raises as `workspace.fill`."""
        parts = self._parts
        await trio.to_thread.run_sync(workspace.fill, parts.place, parts.request, parts.links)

    async def _start_anew(
        self,
        reason: Literal["restart", "reset"],
        without_kernel: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._check_open()
        # Queued calls, and a kernel's own end, would start the next one too early.
        with self._slot.held():
            holder = self.turns.holder
            if holder is not None and holder.status in IN_CELL:
                holder.control.end("restarted")
                await holder.wait_ended()
            await self._slot.empty()
            if without_kernel is not None:
                await without_kernel()
        await self._slot.acquire()
        generation = self._slot.generation
        await self._event("session_changed", reason=reason, generation=generation).wait()

    # Seen from outside

    @property
    def state(self) -> State:
        """What the session does now."""
        return self._state

    @property
    def isolation_missing(self) -> tuple[str, ...]:
        """The layers of isolation that this machine does not give."""
        return self._parts.chosen.missing

    async def facts(self) -> BaseFacts:
        """See `pipeline.Host`."""
        return await self._parts.facts()

    async def describe(self) -> str:
        """The `repl` tool's description: base text and each extension's fragment."""
        return compose(
            await self.facts(),
            [e.description for e in self._parts.extensions if e.description],
            [bound.tool for bound in self.runtime.tools.values()] if self._has_guest else (),
        )

    async def tools(self) -> tuple[ToolInfo, ...]:
        """The tools that a call may name."""
        return (
            ToolInfo(
                name=repl.NAME,
                description=await self.describe(),
                input_schema=repl.input_schema(),
            ),
            *(
                ToolInfo(
                    name=bound.tool.name,
                    description=bound.tool.full_description(),
                    input_schema=dict(bound.tool.input_schema),
                )
                for bound in self.runtime.tools.values()
            ),
        )

    async def info(self) -> SessionInfo:
        """The session as it is now."""
        request = self._parts.request
        tools = await self.tools()
        holder = self.turns.holder
        return SessionInfo(
            id=self.id,
            name=request.name,
            tenant=self._parts.tenant,
            state=self._state,
            backend=request.backend or "local",
            kernel=request.kernel,
            guest=self._has_guest,
            isolation=self._parts.chosen.isolation,
            isolation_missing=self._parts.chosen.missing,
            workspace_bound=self._parts.workspace_bound,
            lifetime=request.lifetime,
            environment=request.environment,
            survive_restart=request.survive_restart,
            created_at=self.created_at,
            last_used_at=self.last_used_at,
            extensions=tuple(
                ExtensionInfo(
                    name=extension.name,
                    tools=tuple(tool.name for tool in extension.tools),
                    names=report.names if (report := self._reports.get(extension.name)) else (),
                    setup_s=round(report.duration_s, 6) if report else None,
                )
                for extension in self._parts.extensions
            ),
            tools=tools,
            description=tools[0].description,
            limits=self.limits,
            generation=self._slot.generation,
            queued=len(self.turns),
            running=holder.id if holder is not None else None,
        )

    async def leave_workspace(self) -> None:
        """Let go of the workspace, and leave it as it is for the next coordinator."""
        await self._parts.place.leave()

    async def remove_workspace(self) -> None:
        """Remove what the session's processes wrote; they have ended. Artefacts stay."""
        self.artifacts.close()
        await self._parts.place.close()
