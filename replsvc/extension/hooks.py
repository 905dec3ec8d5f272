"""Hooks: what an extension has a say in.

async def gate(event: ToolCallEvent, ctx: HookContext) -> Block | None:
    if event.tool == "repl" and "rm -rf" in event.input["code"]:
        return Block("not here")
    return None

careful = Extension(name="careful", hooks=Hooks(tool_call=gate))
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from replsvc.extension.context import SessionView, SetupContext
from replsvc.extension.issues import extension_error, shown

EVENTS = ("tool_call",)


@dataclass(frozen=True, slots=True)
class Block:
    """A hook's veto: the call does not run, and `reason` is what the agent reads.

    `terminate` says that the agent may stop here.
    """

    reason: str = ""
    terminate: bool = False


class ToolCallEvent(BaseModel):
    """A call whose input is valid, before it runs.

    `input` may be changed: later handlers see it so, it is checked again, and that is what runs.
    `source` says who calls: a client, code in the kernel, or another tool's handler.
    """

    tool: str
    call_id: str
    parent_call_id: str | None = None
    source: Literal["client", "kernel", "extension"] = "client"
    input: dict[str, Any]


class HookContext(SetupContext):
    """What a handler may use: session, options, logger, services, and the extension's resource."""

    def __init__(
        self,
        *,
        session: SessionView,
        options: Any,
        logger: Any,
        service: Callable[[type], Any],
        resource: Any,
    ) -> None:
        super().__init__(session=session, options=options, logger=logger, service=service)
        self.resource = resource


ToolCallHandler: TypeAlias = Callable[
    [ToolCallEvent, HookContext], Block | Awaitable[Block | None] | None
]


class Hooks:
    """Handlers by event, one or several of each; sync ones run in a worker thread.

    - `tool_call` decides on each call, of any tool, whoever makes it: a `Block` is a veto. It fails
      closed: a handler that raises, takes too long or returns something else blocks the call.

    Raises `ExtensionError` for an event that there is not, and for what can't be called.
    """

    __slots__ = ("tool_call",)

    def __init__(
        self, *, tool_call: ToolCallHandler | Sequence[ToolCallHandler] = (), **unknown: object
    ) -> None:
        issues = []
        for name in unknown:
            near = difflib.get_close_matches(name, EVENTS, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(EVENTS)}"
            issues.append(f"Hooks: there is no event {shown(name)}{hint}")
        handlers = tuple(tool_call) if isinstance(tool_call, Sequence) else (tool_call,)
        given: tuple[object, ...] = handlers
        issues += [
            f"Hooks: a handler of tool_call must be callable, not {shown(one)}"
            for one in given
            if not callable(one)
        ]
        if issues:
            raise extension_error(issues)
        self.tool_call = handlers
