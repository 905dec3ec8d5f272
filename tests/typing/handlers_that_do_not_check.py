"""What mypy must refuse, each in the line that says so."""

from __future__ import annotations

from pydantic import BaseModel

from replsvc import (
    Extension,
    HookContext,
    Hooks,
    Image,
    ToolCallEvent,
    ToolContext,
    ToolResult,
    tool,
)


class Note(BaseModel):
    text: str


async def wrong_resource(note: Note, ctx: ToolContext[list[str]]) -> str:
    ctx.resource.append(note)  # refused: arg-type
    return ctx.resource  # refused: return-value


def gives_bytes(note: Note) -> bytes:
    return note.text.encode()


async def gives_a_set(note: Note) -> set[str]:
    return {note.text}


tool(handler=gives_bytes)  # refused: arg-type
tool(handler=gives_a_set)  # refused: arg-type
tool(handler=gives_bytes, execution="later")  # refused: call-overload
tool(handler="save")  # refused: call-overload
ToolResult(content=3)  # refused: arg-type
Image(b"", "image/tiff")  # refused: arg-type
Extension(tools=[gives_bytes])  # refused: list-item


class Counter:
    pass


def wrong_service(ctx: ToolContext) -> str:
    return ctx.get_service(Counter)  # refused: return-value


tool(handler=wrong_service, services=["Counter"])  # refused: list-item
Extension(setup=list)  # refused: arg-type
Extension(provides=[Counter()])  # refused: list-item


def says_yes(event: ToolCallEvent, ctx: HookContext) -> bool:
    return True


Hooks(tool_call=says_yes)  # refused: arg-type
