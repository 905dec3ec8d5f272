"""One call of an extension's tool, in the order of extensions.md rule 17.

`run_tool` reads top to bottom: prepare, validation, policy, execution, output validation,
truncation. An input that is refused runs nothing. Whatever the handler does is the call's end,
never a fault of the service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog
import trio
from pydantic import BaseModel, ValidationError

from replsvc import causes
from replsvc.calls import (
    Call,
    Cause,
    Content,
    Cost,
    Draft,
    ErrorInfo,
    ImageContent,
    Keep,
    OutputInfo,
    Status,
    TextContent,
    Times,
    utc_now,
)
from replsvc.config import Limits
from replsvc.extension import handlers
from replsvc.extension.context import ToolContext
from replsvc.extension.issues import refused
from replsvc.extension.results import Checked, Image, ResultError, checked, encoded, json_text
from replsvc.extension.runtime import BoundTool
from replsvc.output import LONG_CHARS, Picture, Unshown, clip, fit, result_text, tokens_estimate
from replsvc.policy import PolicyHost, Verdict, decide
from replsvc.redaction import Redactor
from replsvc.run import Run

MAX_MESSAGE_CHARS = 4_000
"""Of what a handler's exception says."""
LOG_PIECE_BYTES = 1024 * 1024
_NOTHING = object()

log = structlog.get_logger("replsvc.tools")


class ToolHost(PolicyHost, Protocol):
    """What a tool's call needs of its session."""

    @property
    def truncation(self) -> Keep:
        """Which part of a long text the model sees, unless a call says so itself."""


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended, before it is shown. `ending` is a line for the model."""

    status: Status
    result: Checked = field(default_factory=Checked)
    error: ErrorInfo | None = None
    cause: Cause | None = None
    ending: str | None = None


async def run_tool(run: Run, host: ToolHost, bound: BoundTool) -> None:
    """Take a call of `bound` to its end, and write it down. Raises `StorageError`."""
    value = await _preflight(run, host, bound)
    end = value if isinstance(value, End) else await _execute(run, host, bound, value)
    if run.parent is not None:
        run.returned = end.result
    call = await _call(run, host, bound, end)
    assert run.log is not None
    # Durable before anyone is told.
    await run.log.finish(call, run.finish)


# Before it runs


async def _preflight(run: Run, host: ToolHost, bound: BoundTool) -> BaseModel | End:
    """The checked input, or why the handler is not called."""
    try:
        return await _checked_input(run, host, bound)
    finally:
        run.looked_at.set()


async def _checked_input(run: Run, host: ToolHost, bound: BoundTool) -> BaseModel | End:
    tool = bound.tool
    if run.control.stopped is not None:
        return _stopped(run, bound)
    given: Any = run.request.input
    if tool.prepare is not None:
        # A copy in depth: what was asked for is in the log, and its fingerprint is its own.
        copied = run.request.model_copy(deep=True).input
        with run.control.listening(trio.current_time() + (tool.timeout_s or float("inf"))):
            given = handlers.Raised(TimeoutError("prepare did not end in time"))
            given = await handlers.call(partial(tool.prepare, copied), host.runtime.threads)
        if run.control.heard:
            return _stopped(run, bound)
        if isinstance(given, handlers.Raised):
            _tell(run, host, bound, "prepare failed", given)
            return _invalid(tool.name, f"{given.ename}: {given.evalue[:MAX_MESSAGE_CHARS]}")
        if not isinstance(given, dict):
            return _invalid(tool.name, f"prepare returned a {type(given).__qualname__}, not a dict")
    value = _validated(run, host, bound, given)
    if isinstance(value, End):
        return value
    verdict = await decide(run, host, given)
    if verdict.is_stopped:
        return _stopped(run, bound)
    if verdict.block is not None:
        return _blocked(verdict)
    # What the handlers left is what runs, and not before it is valid.
    return value if verdict.input is given else _validated(run, host, bound, verdict.input)


def _blocked(verdict: Verdict) -> End:
    assert verdict.block is not None
    return End(
        "blocked",
        Checked((verdict.reason,), terminate=verdict.block.terminate),
        cause=Cause(kind="veto", message=verdict.reason),
    )


def _validated(
    run: Run, host: ToolHost, bound: BoundTool, given: dict[str, Any]
) -> BaseModel | End:
    tool = bound.tool
    try:
        return tool.shape.model.model_validate(given)
    except ValidationError as error:
        return _invalid(tool.name, refused(error)[:MAX_MESSAGE_CHARS])
    except Exception as error:  # noqa: BLE001 - a stranger's validators may raise anything
        raised = handlers.Raised(error)
        _tell(run, host, bound, "a validator failed", raised)
        return _invalid(tool.name, f"{raised.ename}: {raised.evalue[:MAX_MESSAGE_CHARS]}")


def _invalid(name: str, problems: str) -> End:
    message = f"Invalid input for {name}: {problems}{'' if problems.endswith('.') else '.'}"
    return End("error", Checked((message,)), cause=Cause(kind="invalid_input", message=message))


# The handler


async def _execute(run: Run, host: ToolHost, bound: BoundTool, value: BaseModel) -> End:
    """Call the handler, and make of whatever it does how the call ended."""
    tool = bound.tool
    run.status, run.started_at = "running", utc_now()
    run.execution_started = trio.current_time()
    timeout_s = _timeout(run, tool.timeout_s)
    scope = trio.CancelScope(
        deadline=float("inf") if timeout_s is None else trio.current_time() + timeout_s
    )
    updates = _Updates(run, host)
    context: ToolContext[Any] = ToolContext(
        call_id=run.id,
        session=host.runtime.session,
        resource=host.runtime.resources.of(bound.extension),
        options=bound.extension.options,
        logger=log.bind(
            session=host.id, call=run.id, extension=bound.extension.name, tool=tool.name
        ),
        scope=scope,
        update=updates.add,
        service=partial(host.runtime.service, bound),
    )
    arguments = tool.shape.arguments(value, context)
    returned: Any = _NOTHING
    try:
        with run.control.listening(float("inf")), scope:
            returned = await handlers.call(tool.handler, host.runtime.threads, **arguments)
    finally:
        context.end()
        updates.end()
    # What a handler raises when it is told to stop is not why it ended; what it returns stands.
    without = returned is _NOTHING or isinstance(returned, handlers.Raised)
    if without and run.control.stopped is not None:
        return _stopped(run, bound)
    if without and scope.cancel_called:
        if timeout_s is not None and trio.current_time() >= scope.deadline:
            cause = causes.tool_timeout(tool.name, timeout_s)
            return End("timeout", cause=cause, ending=cause.message)
        return End("cancelled", ending=f"the tool {tool.name} gave up by its own cancel_scope")
    if isinstance(returned, handlers.Raised):
        _tell(run, host, bound, "handler failed", returned)
        return _failed(bound, returned.ename, returned.evalue)
    try:
        if isinstance(returned, str | float | int | None) and tool.output is None:
            result = checked(returned)
        else:
            # A model may be large, and so may be what it takes to look at it.
            result = await trio.to_thread.run_sync(checked, returned, tool.output)
    except ResultError as error:
        log.warning("no result", session=host.id, call=run.id, tool=tool.name)
        return _failed(bound, "ResultError", f"it returned {error}")
    return End("error" if result.is_error else "ok", result)


def _timeout(run: Run, own: float | None) -> float | None:
    """The tool's own deadline holds; a call may ask for an earlier one."""
    asked = run.request.timeout_s
    if asked is None or asked == "none":
        return own
    return asked if own is None else min(own, asked)


def _stopped(run: Run, bound: BoundTool) -> End:
    name = bound.tool.name
    match run.control.stopped:
        case "interrupted":
            return End("interrupted", ending=f"the tool {name} was stopped on request")
        case "cancelled":
            return End("cancelled", ending=f"nobody waits for the tool {name} any more")
        case "limit":
            assert run.control.limit is not None
            return End("killed", cause=run.control.limit, ending=run.control.limit.message)
        case why:
            ended = "restarted on request" if why == "restarted" else "closed"
            cause = Cause(kind="service_stop", message=f"the session was {ended}")
            return End("killed", cause=cause, ending=cause.message)


def _failed(bound: BoundTool, ename: str, evalue: str) -> End:
    said = evalue[:MAX_MESSAGE_CHARS]
    text = f"The tool {bound.tool.name} (extension {bound.extension.name}) failed: {ename}"
    return End(
        "error",
        Checked((f"{text}: {said}" if said else text,)),
        error=ErrorInfo(ename=ename, evalue=said),
    )


def _tell(run: Run, host: ToolHost, bound: BoundTool, what: str, raised: handlers.Raised) -> None:
    """A traceback has the service's own paths in it: it is for the operator, not for an agent."""
    log.warning(
        what,
        session=host.id,
        call=run.id,
        extension=bound.extension.name,
        tool=bound.tool.name,
        traceback=host.redactor.text(raised.traceback()),
    )


class _Updates:
    """Takes updates from the handler's task or thread into the call's log, bounded."""

    def __init__(self, run: Run, host: ToolHost) -> None:
        self._run, self._host = run, host
        self._room = host.limits.max_log_bytes
        self._token = trio.lowlevel.current_trio_token()
        self._over = False

    def end(self) -> None:
        """What comes from now on is ignored."""
        self._over = True

    def add(self, partial_result: object) -> None:
        """Raises `ValueError` for what can't be told. Past the log's bound nothing is."""
        try:
            text = json_text(partial_result, "an update")
        except ResultError as error:
            raise ValueError(f"{error}") from None
        self._room -= len(text)
        if self._room < 0:
            return
        told = json.loads(text)  # the handler may go on and change what it gave
        if trio.lowlevel.in_trio_task():
            self._put(told)
        else:
            self._token.run_sync_soon(self._put, told)

    def _put(self, told: object) -> None:
        run = self._run
        if self._over or run.log is None:
            return
        data = {"update": self._host.redactor.json(told)}
        run.log.add(Draft(kind="update", call_id=run.id, data=data))
        # Whoever follows is to see it now, not at the end.
        run.log.announce()


# What is shown


async def _call(run: Run, host: ToolHost, bound: BoundTool, end: End) -> Call:
    """The final object."""
    now = trio.current_time()
    begun = run.execution_started or now
    result = end.result
    pictures, notes = await _pictures(result, host.limits)
    text, output = await _text(run, host, end, notes, has_images=bool(pictures))
    content: list[Content] = [TextContent(text=text)] if text else []
    content += [ImageContent(mime_type=one.mime_type, data=one.data) for one in pictures]
    clean = host.redactor.json
    details: dict[str, Any] = {**clean(dict(result.details))}
    error = end.error
    if error is not None:
        details["extension"] = bound.extension.name
        error = error.model_copy(update={"evalue": host.redactor.text(error.evalue)})
    value: Mapping[str, Any] | None = None
    if result.value is not None:
        value = {"application/json": clean(result.value)}
    return Call(
        id=run.id,
        session_id=host.id,
        seq=0,
        tool=bound.tool.name,
        parent_call_id=run.parent_id,
        title=run.title,
        status=end.status,
        is_error=end.status != "ok",
        content=tuple(content),
        details=details,
        output=output,
        result=value,
        error=error,
        cause=end.cause,
        terminate=result.terminate,
        created_at=run.created_at,
        started_at=run.started_at,
        duration_ms=round((now - begun) * 1e3, 3),
        times=Times(
            queue_s=round(max(0.0, begun - run.created), 6), execution_s=round(now - begun, 6)
        ),
        cost=Cost(
            bytes=len(text.encode("utf-8", "surrogatepass")),
            tokens_estimate=tokens_estimate(text),
            image_px=sum(one.pixels for one in pictures),
        ),
    )


async def _pictures(result: Checked, limits: Limits) -> tuple[list[Picture], list[str]]:
    """The images as a model takes them, and what is said of those that it can't."""
    shown, notes = [], []
    for image in result.images:
        made = await trio.to_thread.run_sync(_fit, image, limits.max_image_px)
        if isinstance(made, Picture):
            shown.append(made)
        else:
            notes.append(str(made).strip("[]"))
    return shown, notes


def _fit(image: Image, max_px: int) -> Picture | Unshown:
    return fit(((image.mime_type, encoded(image)),), max_px)


async def _text(
    run: Run, host: ToolHost, end: End, notes: list[str], *, has_images: bool
) -> tuple[str, OutputInfo]:
    """The text within the model's budget; one that is longer is whole in the call's log."""
    limits, output = host.limits, OutputInfo()
    keep = run.request.truncation or host.truncation
    cut = partial(
        _cut, "\n".join(end.result.texts), host.redactor, limits, f"log of call {run.id}", keep
    )
    is_long = sum(map(len, end.result.texts)) > LONG_CHARS
    text, data = await trio.to_thread.run_sync(cut) if is_long else cut()
    if data is not None:
        kept = data[: limits.max_log_bytes]
        await _write(run, kept)
        output = OutputInfo(
            text=text,
            truncated=True,
            total_bytes=len(data),
            total_lines=data.count(b"\n") + 1,
            dropped_bytes=len(data) - len(kept),
            artifact=f"{run.id}.log",
        )
    ending = host.redactor.text(end.ending) if end.ending is not None else None
    shown = result_text(
        text, None, (), status=end.status, cause_message=ending, notes=notes, has_rich=has_images
    )
    return shown, output


def _cut(
    text: str, redactor: Redactor, limits: Limits, where: str, keep: Keep
) -> tuple[str, bytes | None]:
    """The text for a model; and all of it, where that is more."""
    whole = redactor.text(text)
    data = whole.encode("utf-8", "backslashreplace")
    max_bytes, max_lines = limits.max_output_bytes, limits.max_output_lines
    if len(data) <= max_bytes and data.count(b"\n") < max_lines:
        return data.decode(), None
    return clip(whole, max_bytes, max_lines, where, keep).text, data


async def _write(run: Run, data: bytes) -> None:
    assert run.log is not None
    for at in range(0, len(data), LOG_PIECE_BYTES):
        run.log.add(
            Draft(
                kind="output",
                call_id=run.id,
                data={"type": "stream", "name": "stdout"},
                blob=data[at : at + LOG_PIECE_BYTES],
            )
        )
        await run.log.room()
