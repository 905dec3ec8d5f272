"""Who has a say before a call runs: the `tool_call` hooks of the session's extensions.

One after another, in the extensions' order; the first veto ends it. They fail closed: a call on
which a handler could not decide does not run.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import structlog
import trio

from replsvc import repl
from replsvc.calls import Draft
from replsvc.config import Limits
from replsvc.extension import handlers
from replsvc.extension.hooks import Block, HookContext, ToolCallEvent
from replsvc.extension.resolve import ResolvedExtension
from replsvc.extension.runtime import Runtime
from replsvc.redaction import Redactor
from replsvc.run import Run

MAX_REASON_CHARS = 4_000

log = structlog.get_logger("replsvc.hooks")


class PolicyHost(Protocol):
    """What decisions need of their session."""

    @property
    def id(self) -> str:
        """The session's id."""

    @property
    def limits(self) -> Limits:
        """The session's limits."""

    @property
    def redactor(self) -> Redactor:
        """Takes the session's secrets out of what is logged and shown."""

    @property
    def runtime(self) -> Runtime:
        """The session's extensions."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it: the input, as the handlers left it, and the veto with who gave it.

    With `is_stopped` the call was stopped meanwhile, and there is no decision.
    """

    input: dict[str, Any]
    block: Block | None = None
    by: str = ""
    is_stopped: bool = False

    @property
    def reason(self) -> str:
        """For the agent."""
        assert self.block is not None
        return self.block.reason or f"Blocked by the extension {self.by}."


async def decide(run: Run, host: PolicyHost, given: dict[str, Any]) -> Verdict:
    """Ask each handler about a call with this input, which stays as it is."""
    hooks = host.runtime.on_tool_call
    if not hooks:
        return Verdict(given)
    event = ToolCallEvent(
        tool=run.request.tool,
        call_id=run.id,
        parent_call_id=run.parent_id,
        source=_source(run),
        input=copy.deepcopy(given),
    )
    text, limit_s = json.dumps(given), host.limits.hook_timeout_s
    asked: ResolvedExtension | None = None
    verdict: Verdict | None = None
    with run.control.listening(math.inf):
        for extension, handler in hooks:
            run.control.move(trio.current_time() + limit_s)
            asked = extension
            said = await handlers.call(
                partial(handler, event, _context(host, extension)), host.runtime.threads
            )
            asked = None
            verdict = _said(run, host, extension, given, said)
            if verdict is not None:
                break
            left = _text_of(event.input)
            if isinstance(left, Exception):
                verdict = _undecided(run, host, extension, given, left)
                break
            if left != text:
                text = left
                _tell(run, host, "update", changed_by=extension.name, input=event.input)
    if run.control.stopped is not None:
        return Verdict(given, is_stopped=True)
    if asked is not None:
        late = TimeoutError(f"it did not decide within {limit_s:g} s")
        verdict = _undecided(run, host, asked, given, late)
    return verdict or Verdict(event.input)


def _text_of(changed: object) -> str | Exception:
    """What a handler left as input, as JSON; or why it is none."""
    if not isinstance(changed, dict):
        return TypeError(f"it left a {type(changed).__qualname__} as input, not a dict")
    try:
        return json.dumps(changed, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return ValueError(f"it left input that is no JSON: {error}")


def _source(run: Run) -> Literal["client", "kernel", "extension"]:
    if run.parent is None:
        return "client"
    return "kernel" if run.parent.request.tool == repl.NAME else "extension"


def _context(host: PolicyHost, extension: ResolvedExtension) -> HookContext:
    """One a session: nothing in it is of one call."""
    known = host.runtime.hook_contexts
    if extension.name not in known:
        resources = host.runtime.resources
        known[extension.name] = HookContext(
            session=host.runtime.session,
            options=extension.options,
            logger=log.bind(session=host.id, extension=extension.name),
            service=partial(resources.service, extension),
            resource=resources.of(extension),
        )
    return known[extension.name]


def _said(
    run: Run, host: PolicyHost, extension: ResolvedExtension, given: dict[str, Any], said: Any
) -> Verdict | None:
    """What a handler's answer means; None: the next one is asked."""
    if said is None:
        return None
    if isinstance(said, Block):
        reason = host.redactor.text(said.reason)[:MAX_REASON_CHARS]
        return Verdict(given, Block(reason, said.terminate is True), extension.name)
    if isinstance(said, handlers.Raised):
        return _undecided(run, host, extension, given, said.error)
    wrong = TypeError(f"it returned a {type(said).__qualname__}, not a Block or None")
    return _undecided(run, host, extension, given, wrong)


def _undecided(
    run: Run,
    host: PolicyHost,
    extension: ResolvedExtension,
    given: dict[str, Any],
    error: BaseException,
) -> Verdict:
    raised = handlers.Raised(error)
    log.warning(
        "no decision",
        session=host.id,
        call=run.id,
        extension=extension.name,
        traceback=host.redactor.text(raised.traceback()),
    )
    why = host.redactor.text(raised.summary)[:MAX_REASON_CHARS]
    reason = f"The extension {extension.name} could not decide on this call: {why}"
    _tell(run, host, "extension_error", extension=extension.name, event="tool_call", error=why)
    return Verdict(given, Block(reason), extension.name)


def _tell(
    run: Run, host: PolicyHost, kind: Literal["update", "extension_error"], **data: Any
) -> None:
    assert run.log is not None
    run.log.add(Draft(kind=kind, call_id=run.id, data=host.redactor.json(data)))
