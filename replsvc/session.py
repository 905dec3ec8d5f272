"""One session: its queue, its kernel, its extensions, its log; lifetimes nested in one nursery.

A `Session` is run by the coordinator as one task. Every method may be called from any task of the
same trio run, and cancelled; what a cancelled method does to a running call is said in its
docstring.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import trio
from pydantic import ValidationError

from replsvc import causes, repl, workspace
from replsvc.artifacts import Artifacts
from replsvc.background_log import BackgroundLog
from replsvc.batches import run_batch
from replsvc.calls import Batch, Call, CallRequest, Cause, Draft, Event, Status
from replsvc.cell import CellEnd
from replsvc.errors import (
    ExtensionDisposeError,
    InvalidInputError,
    ReplsvcError,
)
from replsvc.extension.context import SessionView
from replsvc.extension.describe import BaseFacts, compose
from replsvc.extension.runtime import Runtime
from replsvc.intake import Intake
from replsvc.interaction import Interaction
from replsvc.kernel_slot import KernelSlot, Started, text_of
from replsvc.lasting import CallLeft
from replsvc.pipeline import run_call
from replsvc.redaction import Redactor
from replsvc.run import Run, Turns
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
        self._state: State = "starting"
        self._has_guest = True
        self._reports: dict[str, SetupReport] = {}
        self._slot = KernelSlot(
            parts.plan, self.redactor, on_started=self._started, on_died=self._died
        )
        self._watches = watches(
            parts.limits, parts.place, self._slot, lambda: self.turns.holder is not None
        )
        self._nursery: trio.Nursery | None = None
        self.lasting = parts.lasting
        self._intake = Intake(
            parts.id, parts.log, parts.limits, self.redactor, self.turns, parts.lasting, self._take
        )
        self.created_at = self._intake.last_used_at
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
                self._intake.begin(nursery)
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
            self._intake.end()
        if first is not None:
            raise first

    async def stop_work(self, because: Cause | None = None) -> None:
        """Refuse new calls, end those that wait or run with a result each, then the kernel.

        `because` is the limit that the session has reached; without one it was closed.
        """
        self._intake.close()
        for run in self.turns.waiting():
            run.control.cancel()
        holder = self.turns.holder
        for run in self._intake.calls.living():
            if run is not holder and run.request.tool == repl.NAME:
                continue
            if because is not None:
                run.control.end_for(because)
            else:
                run.control.end("closed")
        for run in self._intake.calls.living():
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
        self._intake.used_at = trio.current_time()
        while True:
            # By the clock, not woken by each call: that would be a good part of a small one.
            if (due := self._intake.used_at + idle_s) > trio.current_time():
                await trio.sleep_until(due)
                continue
            if not self._intake.calls.living() and self._slot.current is not None:
                self._state = "stopped"
                await self._slot.release()
                cause = causes.idle(idle_s, trio.current_time() - self._intake.used_at)
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

    async def _take(self, run: Run) -> None:
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

    async def submit(self, request: CallRequest, *, after: Run | None = None) -> Run:
        """Begin a call; returns at once. See `Intake.submit`, also for what it raises."""
        return await self._intake.submit(request, after=after)

    def following(self, run: Run) -> AbstractAsyncContextManager[None]:
        """Be one who waits for `run`. See `Intake.following`."""
        return self._intake.following(run)

    async def go_on(self, calls: Sequence[CallLeft]) -> None:
        """Take calls to their end that an earlier coordinator had, in their order.

        Raises `StorageError`.
        """
        await self._intake.go_on(calls)

    async def find(self, call_id: str) -> Call:
        """The call as it is now. Raises `CallNotFoundError`, `StorageError`."""
        return await self._intake.calls.find(call_id)

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
        self._intake.check_open()
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
            last_used_at=self._intake.last_used_at,
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
