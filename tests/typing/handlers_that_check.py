"""What mypy must take; tests/extension/test_extension_typing.py runs it over this file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_type

from pydantic import BaseModel

from replsvc import (
    Block,
    Extension,
    HookContext,
    Hooks,
    Image,
    SetupContext,
    Tool,
    ToolCallEvent,
    ToolContext,
    ToolResult,
    tool,
)


class Note(BaseModel):
    text: str


async def save(note: Note, ctx: ToolContext[list[str]]) -> str:
    ctx.resource.append(note.text)
    ctx.update({"saved": len(ctx.resource)})
    return f"{len(ctx.resource)} saved"


def count(ctx: ToolContext[list[str]]) -> int:
    return len(ctx.resource)


def add(a: int, b: int = 2) -> dict[str, int]:
    return {"sum": a + b}


@tool
async def greet(name: str) -> ToolResult:
    """Greets."""
    return ToolResult(content=["Hello", Image(b"", "image/png")], details={"name": name})


@tool(name="shout", timeout_s=None)
def loud(note: Note) -> Note:
    """Shouts."""
    return Note(text=note.text.upper())


assert_type(tool(name="save_note", handler=save), Tool[list[str]])
assert_type(tool(handler=count), Tool[list[str]])
Extension(tools=[tool(handler=save), tool(handler=count), tool(handler=add), greet, loud])


class Counter:
    def next(self) -> int:
        return 1


async def lend(ctx: SetupContext) -> AsyncIterator[Counter]:
    yield ctx.get_service(Counter)


def numbered(text: str, ctx: ToolContext) -> str:
    assert_type(ctx.get_service(Counter), Counter)
    return f"{ctx.get_service(Counter).next()}. {text}"


lends = Extension(setup=lend, provides=[Counter])
Extension(
    tools=[tool(handler=numbered, services=[Counter])],
    dependencies=[lends, (lends, {"a": 1})],
    setup=lambda ctx: [ctx.session.id],
    dispose=list.clear,
)


async def gate(event: ToolCallEvent, ctx: HookContext) -> Block | None:
    return Block(event.tool) if event.source == "kernel" else None


def watch(event: ToolCallEvent, ctx: HookContext) -> None:
    ctx.logger.info(event.call_id)


Extension(hooks=Hooks(tool_call=gate))
Extension(hooks=Hooks(tool_call=[gate, watch]))
