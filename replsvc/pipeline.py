"""One call from its start event to its end event, in the order of extensions.md rule 17.

`run_call` reads top to bottom: lookup, validation, policy, (approval: its place is marked by where
it will stand), execution, result, log. An unknown tool or invalid input starts and ends a call and
runs nothing. The service's own faults leave as exceptions; everything else is a `Call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import trio
from pydantic import ValidationError

from replsvc import causes, hints, repl
from replsvc.artifacts import NO_FILES, Artifacts, Made
from replsvc.calls import (
    Call,
    Cause,
    Cost,
    Draft,
    ErrorInfo,
    Keep,
    OutputInfo,
    ResourceLink,
    Status,
    TextContent,
    Times,
    Usage,
    utc_now,
)
from replsvc.cell import SLOW_S, CellEnd, run_cell
from replsvc.code_calls import CallsTools, tools_of
from replsvc.config import Limits
from replsvc.errors import (
    BackendUnavailableError,
    ExtensionSetupError,
    ReplsvcError,
    StorageError,
)
from replsvc.extension.describe import BaseFacts
from replsvc.extension.issues import nearest, refused
from replsvc.inputs import asks_of
from replsvc.interaction import Interaction
from replsvc.kernel_slot import Started
from replsvc.lasting import Lasting, outputs
from replsvc.output import LONG_CHARS, clip, mime_text, result_text, tokens_estimate
from replsvc.policy import decide
from replsvc.recorder import Recorder
from replsvc.run import Run, Turns, work_for
from replsvc.store.log import EventLog
from replsvc.tool_call import ToolHost, run_tool
from replsvc_kernels.kernel import LastingKernel
from replsvc_kernels.messages import Output


class Host(ToolHost, CallsTools, Protocol):
    """What a call needs of its session."""

    @property
    def log(self) -> EventLog:
        """Where everything that happens goes first."""

    @property
    def turns(self) -> Turns:
        """Who has the kernel."""

    @property
    def interaction(self) -> Interaction:
        """What waits for somebody's answer."""

    async def facts(self) -> BaseFacts:
        """What the tool's description says of this session."""

    @property
    def lasting(self) -> Lasting | None:
        """Where its calls are held, if it survives a restart."""

    @property
    def fresh_each_call(self) -> bool:
        """Whether each call gets a kernel of its own."""

    @property
    def artifacts(self) -> Artifacts:
        """What becomes of the files that cells make."""

    @property
    def workspace_is_hard(self) -> bool:
        """Whether the system refuses more files than `limits.workspace_bytes`."""

    async def kernel(self) -> Started:
        """The kernel, started if need be."""

    def kernel_done(self, end: CellEnd | None) -> None:
        """The cell has ended; what becomes of the kernel is the session's matter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What execution gave, before it becomes a `Call`."""

    status: Status
    text: str
    output: OutputInfo = field(default_factory=OutputInfo)
    recorder: Recorder | None = None
    error: ErrorInfo | None = None
    cause: Cause | None = None
    end: CellEnd | None = None
    hint: str | None = None
    hits: tuple[Cause, ...] = ()
    made: Made = NO_FILES
    terminate: bool = False


async def run_call(run: Run, host: Host) -> None:
    """Take `run` to its end; `run.wait` then gives the result or raises the service's fault."""
    work_for(run)
    try:
        if run.before is not None:
            await run.before.looked_at.wait()
        bound = host.runtime.tools.get(run.request.tool)
        if bound is not None:
            await run_tool(run, host, bound)
            return
        refusal = _refusal(run, host) or await _veto(run, host)
        outcome = refusal if refusal is not None else await _execute_repl(run, host)
        assert run.log is not None
        # Durable before anyone is told.
        await run.log.finish(_call(run, host, outcome), run.finish)
    except ReplsvcError as error:
        await _record_fault(run, error)
        run.fail(error)


def _refusal(run: Run, host: Host) -> Outcome | None:
    """Lookup and validation: what keeps a call from running at all, as the agent should read it."""
    if run.request.tool != repl.NAME:
        known = [repl.NAME, *host.runtime.tools]
        return _refused(
            "unknown_tool",
            f"There is no tool {run.request.tool!r}.{nearest(run.request.tool, known)} "
            f"Tools: {', '.join(known)}.",
        )
    try:
        value = repl.ReplInput.model_validate(run.input)
    except ValidationError as error:
        return _refused("invalid_input", f"Invalid input for {repl.NAME}: {refused(error)}.")
    size = len(value.code.encode("utf-8", "surrogatepass"))
    if size > host.limits.max_code_bytes:
        return _refused(
            "invalid_input",
            f"The code has {size} bytes, the limit is {host.limits.max_code_bytes}: "
            "write large data to a file and read it.",
        )
    return None


async def _veto(run: Run, host: Host) -> Outcome | None:
    """Policy: why the code does not run; else `run.input` is what runs."""
    if run.resumes:
        return None  # it was decided on when it began
    verdict = await decide(run, host, run.input)
    if verdict.is_stopped:
        return Outcome("cancelled", "[cancelled before it started; nothing ran]")
    if verdict.block is not None:
        cause = Cause(kind="veto", message=verdict.reason)
        terminate = verdict.block.terminate
        text = result_text(verdict.reason, None, (), status="blocked")
        return Outcome("blocked", text, cause=cause, terminate=terminate)
    if verdict.input is run.input:
        return None
    run.input = verdict.input
    return _refusal(run, host)


def _refused(kind: str, message: str) -> Outcome:
    return Outcome("error", message, cause=Cause.model_validate({"kind": kind, "message": message}))


async def _execute_repl(run: Run, host: Host) -> Outcome:
    """Wait for the kernel's turn, run the cell, and make of its end what the agent reads."""
    assert run.log is not None
    keep = run.request.truncation or host.truncation
    recorder = Recorder(run.log, run.id, host.limits, host.redactor, f"log of call {run.id}", keep)
    end: CellEnd | None = None
    if not await _wait_turn(run, host):
        return Outcome("cancelled", "[cancelled before it started; nothing ran]")
    try:
        try:
            started = await host.kernel()
        except ExtensionSetupError as error:
            parts = (error.output.removesuffix("\n"), error.traceback, f"[killed: {error}]")
            text = "\n".join(part for part in parts if part)
            text = clip(text, host.limits.max_output_bytes, host.limits.max_output_lines).text
            return Outcome("killed", text, cause=Cause(kind="setup", message=error.message))
        if run.control.stopped is not None:
            return Outcome("cancelled", "[cancelled before it started; nothing ran]")
        if run.status == "queued" and run.waited:
            run.log.add(Draft(kind="status", call_id=run.id, data={"status": "running"}))
        run.status, run.started_at = "running", utc_now()
        run.execution_started = trio.current_time()
        timeout_s = _timeout(run, host.limits)
        await host.artifacts.begin()
        sink: Callable[[Output], Awaitable[None]] = recorder.output
        if (lasting := host.lasting) is not None and isinstance(started.kernel, LastingKernel):
            # Whatever ran is in the log, also when we are killed in a moment.
            await run.log.started()
            if run.resumes:
                async for event in outputs(host.log, host.id, run.id):
                    recorder.recall(event)
            lasting.call(run.id, run.request, begun=True)
            sink = partial(recorder.output_kept, kernel=started.kernel)
        tools, call_tool = tools_of(run, host)
        end = await run_cell(
            started.kernel,
            run.input["code"],
            cell_id=run.id,
            env=run.request.env,
            timeout_s=timeout_s,
            grace_s=host.limits.interrupt_grace_s,
            control=run.control,
            sink=sink,
            resume=run.resumes,
            on_slow=run.log.announce,
            ask=asks_of(run, host.interaction, host.limits, host.redactor),
            tools=tools,
            call=call_tool,
            max_wait_s=host.limits.max_wait_s,
        )
        # Before the next cell may change them.
        made = await host.artifacts.collect(run.id)
    finally:
        host.kernel_done(end)
        if host.lasting is None:  # else the next cell waits until this one's end is durable
            host.turns.leave(run)
    status, cause = repl.verdict(end, timeout_s)
    output = await recorder.finish()
    if oversized := recorder.oversized():
        made = await host.artifacts.keep_outputs(run.id, made, oversized)
    failure = end.reply.failure if end.reply is not None else None
    info = None
    if failure is not None:
        info = recorder.error(failure, has_guest=started.kernel.info.has_guest)
    lost = failure.left_out if failure is not None else 0
    if lost:
        output = output.model_copy(update={"truncated": True})
    hint = None
    if started.kernel.info.has_guest:
        hint = await _hint(host, run.input["code"], info, output.text)
    hits: tuple[Cause, ...] = ()
    # To ask costs more than a quick cell that went well, and nothing can have happened in one.
    if not end.state_lost and (info is not None or end.execution_s >= SLOW_S):
        hits = tuple(causes.hit_cause(hit) for hit in started.kernel.limits_hit())
    shown = [one for one in made.artifacts if one.source == "output" and one.kept]
    kept = [f"{one.mime_type} of {one.size:,} bytes is artefact {one.id}" for one in shown]
    if lost:
        kept.append(
            f"{lost:,} characters of the error's message are kept nowhere; "
            "catch the exception and write its text to a file to have them"
        )
    notes = (*kept, *([hint] if hint is not None else []), *(hit.message for hit in hits))
    return Outcome(
        status,
        await _text(host, recorder, output, info, end, status, cause, notes, keep),
        output, recorder, info,
        cause, end, hint, hits, made,
    )  # fmt: skip


async def _hint(host: Host, code: str, error: ErrorInfo | None, printed: str) -> str | None:
    """What works here, where a package could not be had, or a limit was reached."""
    if (said := hints.limit_hint(error, host.limits, hard=host.workspace_is_hard)) is not None:
        return said
    if not hints.may_need_hint(code, error, printed):
        return None
    try:
        return hints.hint(error, await host.facts())
    except BackendUnavailableError:
        return None  # the result stands without it


async def _wait_turn(run: Run, host: Host) -> bool:
    """Whether the turn came; False when the call was cancelled in the queue."""
    run.waited = host.turns.holder is not run
    if run.waited and run.log is not None:
        run.log.announce()
    if not run.waited:
        return run.control.stopped is None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while run.control.stopped is None:
                await run.control.asked.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await host.turns.wait(run)
        nursery.cancel_scope.cancel()
    if run.control.stopped is not None:
        host.turns.leave(run)
        return False
    return True


def _timeout(run: Run, limits: Limits) -> float | None:
    asked = run.request.timeout_s
    if asked is None:
        return limits.timeout_s
    return None if asked == "none" else asked


async def _text(
    host: Host,
    recorder: Recorder,
    output: OutputInfo,
    error: ErrorInfo | None,
    end: CellEnd,
    status: Status,
    cause: Cause | None,
    notes: tuple[str, ...],
    keep: Keep,
) -> str:
    limits = host.limits

    async def short(text: str, where: str) -> str:
        cut = partial(clip, text, limits.max_output_bytes, limits.max_output_lines, where, keep)
        # What a kernel made this long may be made to be slow, too: it must not hold the others up.
        view = await trio.to_thread.run_sync(cut) if len(text) > LONG_CHARS else cut()
        return view.text

    page = recorder.page
    value = mime_text(page.value) if page.value is not None else None
    ending = repl.ending(status, cause, state_lost=end.state_lost, fresh=host.fresh_each_call)
    lines: list[str] = []
    if error is not None and status == "error":
        text = await short("\n".join(error.traceback), "error.traceback")
        lines = text.split("\n")
    return result_text(
        output.text,
        await short(value, "result") if value is not None else None,
        lines,
        status=status,
        cause_message=ending,
        notes=(*page.notes, *notes),
        has_rich=bool(page.pictures),
    )


def _call(run: Run, host: Host, outcome: Outcome) -> Call:
    """The final object; its number is the log's to give."""
    end, recorder = outcome.end, outcome.recorder
    now = trio.current_time()
    begun = run.execution_started or now
    content = (
        (*recorder.content(outcome.text), *_links(host.id, outcome.made))
        if recorder is not None
        else (TextContent(text=outcome.text),)
    )
    result, left_out = recorder.result() if recorder is not None else (None, {})
    details: dict[str, Any] = {} if outcome.hint is None else {"hint": outcome.hint}
    if outcome.hits:
        details["limits_hit"] = [
            hit.model_dump(mode="json", exclude_none=True) for hit in outcome.hits
        ]
    if left_out:
        details["left_out"] = left_out
    reply = end.reply if end is not None else None
    return Call(
        id=run.id,
        session_id=host.id,
        seq=0,
        tool=run.request.tool,
        parent_call_id=run.parent_id,
        title=run.title,
        status=outcome.status,
        is_error=outcome.status != "ok",
        content=content,
        details=details,
        output=outcome.output,
        result=result,
        error=outcome.error,
        cause=outcome.cause,
        state_lost=end.state_lost if end is not None and not host.fresh_each_call else False,
        execution_count=reply.execution_count if reply is not None else None,
        artifacts=outcome.made.artifacts,
        artifacts_complete=outcome.made.complete,
        terminate=outcome.terminate,
        created_at=run.created_at,
        started_at=run.started_at,
        duration_ms=round((now - begun) * 1e3, 3),
        times=Times(
            queue_s=round(max(0.0, begun - run.created), 6),
            wait_s=round(end.wait_s, 6) if end is not None else 0.0,
            execution_s=round(end.execution_s, 6) if end is not None else 0.0,
        ),
        cost=Cost(
            bytes=len(outcome.text.encode("utf-8", "surrogatepass")),
            tokens_estimate=tokens_estimate(outcome.text),
            image_px=recorder.image_px if recorder is not None else 0,
        ),
        usage=Usage(
            cpu_s=reply.cpu_s if reply is not None else None,
            max_memory_bytes=reply.max_rss_bytes if reply is not None else None,
        ),
    )


def _links(session_id: str, made: Made) -> Iterator[ResourceLink]:
    """Where what was too large to show can be fetched."""
    for one in made.artifacts:
        if one.source == "output" and one.kept:
            uri = f"/v1/sessions/{session_id}/artifacts/{one.id}"
            yield ResourceLink(uri=uri, name=one.path, mime_type=one.mime_type, size=one.size)


async def _record_fault(run: Run, error: ReplsvcError) -> None:
    """Say in the log that the service failed this call, if the log can still be written."""
    if isinstance(error, StorageError):
        return
    cause = Cause(kind="service_stop", message=str(error))
    call = run.snapshot().model_copy(
        update={
            "status": "killed",
            "is_error": True,
            "cause": cause,
            "content": (TextContent(text=f"[failed: {error}]"),),
        }
    )
    try:
        if run.log is not None:
            await run.log.finish(call, lambda _: None)
    except StorageError:
        return
