"""Tools: what an agent calls directly, as an extension's author writes them.

class Note(BaseModel):
    text: str

async def save(note: Note, ctx: ToolContext) -> str:
    \"""Saves a note.\"""
    return f"saved {len(note.text)} characters"

notes = Extension(name="notes", tools=[tool(name="save_note", handler=save)])
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeAlias, cast, overload

from pydantic import BaseModel
from typing_extensions import TypedDict, TypeVar, Unpack

from replsvc.extension.context import ToolContext
from replsvc.extension.issues import extension_error, raised, shown
from replsvc.extension.results import Image, ToolResult
from replsvc.extension.schema import portable_schema
from replsvc.extension.signature import Shape, is_model, place_of, shape_of

__all__ = ["Image", "Tool", "ToolContext", "ToolResult", "tool"]

R = TypeVar("R", default=Any)
I = TypeVar("I")  # noqa: E741 - the input

Execution = Literal["parallel", "sequential"]
Json: TypeAlias = bool | int | float | str | list[Any] | tuple[Any, ...] | dict[str, Any] | None
Returned: TypeAlias = Json | BaseModel | ToolResult | Image
"""What a handler may return."""
Answer: TypeAlias = Returned | Awaitable[Returned]
Prepare: TypeAlias = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What every model's interface takes as a tool's name."""
EXECUTIONS = ("parallel", "sequential")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(Generic[R]):
    """A tool, checked; made by `tool`. `R` is the resource that its handler gets.

    `input_schema` is JSON Schema; `shape` says how the handler takes its input.
    """

    name: str
    description: str
    handler: Callable[..., Any] = field(repr=False)
    shape: Shape = field(repr=False)
    input_schema: Mapping[str, Any] = field(repr=False, hash=False)
    output: type[BaseModel] | None = None
    execution: Execution = "parallel"
    prepare: Prepare | None = field(default=None, repr=False)
    timeout_s: float | None = 60.0
    guidelines: tuple[str, ...] = ()
    services: tuple[type, ...] = ()

    def full_description(self) -> str:
        """The description, with the guidelines as a list under it."""
        return "\n".join([self.description, *(f"- {line}" for line in self.guidelines)])


class Decorator(Protocol):
    """Makes a tool of the handler beneath it."""

    @overload
    def __call__(self, handler: Callable[[ToolContext[R]], Answer], /) -> Tool[R]: ...
    @overload
    def __call__(self, handler: Callable[[I, ToolContext[R]], Answer], /) -> Tool[R]: ...
    @overload
    def __call__(self, handler: Callable[..., Answer], /) -> Tool[Any]: ...


class Fields(TypedDict, total=False):
    """What `tool` takes besides the handler; each is said there."""

    name: str | None
    description: str | None
    input: type[BaseModel] | None
    output: type[BaseModel] | None
    execution: Execution
    prepare: Prepare | None
    timeout_s: float | None
    guidelines: Sequence[str]
    services: Sequence[type]


# The overloads only tell a handler's resource from what it returns.
@overload
def tool(handler: Callable[[ToolContext[R]], Answer], /) -> Tool[R]: ...
@overload
def tool(handler: Callable[[I, ToolContext[R]], Answer], /) -> Tool[R]: ...
@overload
def tool(handler: Callable[..., Answer], /) -> Tool[Any]: ...
@overload
def tool(
    *,
    handler: Callable[[ToolContext[R]], Answer],
    **fields: Unpack[Fields],
) -> Tool[R]: ...
@overload
def tool(
    *,
    handler: Callable[[I, ToolContext[R]], Answer],
    **fields: Unpack[Fields],
) -> Tool[R]: ...
@overload
def tool(
    *,
    handler: Callable[..., Answer],
    **fields: Unpack[Fields],
) -> Tool[Any]: ...
@overload
def tool(
    **fields: Unpack[Fields],
) -> Decorator: ...
def tool(
    bare: Callable[..., Any] | None = None,
    /,
    *,
    handler: Callable[..., Any] | None = None,
    **fields: Unpack[Fields],
) -> Tool[Any] | Decorator:
    """Make a tool: `tool(handler=..., ...)`, or as a decorator, `@tool` or `@tool(...)`.

    - `handler` is sync (it runs in a worker thread) or async (trio). Its parameters are the input's
      fields; or one parameter, a pydantic model, is the whole input. A parameter annotated with
      `ToolContext` gets the call's context. It returns text, JSON, a model, `Image` or
      `ToolResult`; what it raises fails the call.
    - `name` is the handler's own unless given, `description` its docstring.
    - `input` is the input's model where the handler does not say it; `output` is what the result
      is checked against.
    - `execution`: a "sequential" tool runs alone among the calls of its batch.
    - `prepare` gets the raw input before it is checked, and returns what to use instead.
    - `timeout_s` bounds the handler, in seconds; None does not.
    - `guidelines` are sentences that join the description.
    - `services` are the classes that the handler asks `ctx.get_service` for.

    Raises `ExtensionError` with every problem at once, each with the handler's file and line.
    """
    given = bare if bare is not None else handler
    if given is None:
        return cast("Decorator", lambda found: _made(found, **fields))
    return _made(given, **fields)


def _made(
    handler: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    input: type[BaseModel] | None = None,  # noqa: A002 - the public name
    output: type[BaseModel] | None = None,
    execution: Execution = "parallel",
    prepare: Prepare | None = None,
    timeout_s: float | None = 60.0,
    guidelines: Sequence[str] = (),
    services: Sequence[type] = (),
) -> Tool[Any]:
    if name is None:
        name = getattr(handler, "__name__", "")
    if description is None:
        description = inspect.getdoc(handler) if inspect.isroutine(handler) else None
    issues = []
    if problem := _name_problem(name):
        issues.append(f"name {problem}")
    if not isinstance(description, str) or not description.strip():
        issues.append("description is missing: give one, or a docstring to the handler")
    if output is not None and not is_model(output):
        issues.append(f"output must be a pydantic model, not {shown(output)}")
    if execution not in EXECUTIONS:
        issues.append(f"execution must be one of {', '.join(EXECUTIONS)}, not {shown(execution)}")
    if prepare is not None and not callable(prepare):
        issues.append(f"prepare must be callable, not {shown(prepare)}")
    if problem := _timeout_problem(timeout_s):
        issues.append(f"timeout_s {problem}")
    if isinstance(guidelines, str) or not all(isinstance(line, str) for line in guidelines):
        issues.append("guidelines must be a sequence of str")
    if problem := types_problem(services):
        issues.append(f"services {problem}")
    shape, problems = shape_of(handler, input, name if isinstance(name, str) else "tool")
    issues += problems
    schema: dict[str, Any] = {}
    if shape is not None:
        try:
            schema = portable_schema(shape.model)
        except Exception as error:  # noqa: BLE001 - a stranger's types may raise anything
            issues.append(f"its input has no JSON Schema: {raised(error)}")
    if issues or shape is None:
        place = place_of(handler)
        who = f"tool {shown(name)}" + (f" ({place})" if place else "")
        raise extension_error([f"{who}: {issue}" for issue in issues])
    assert description is not None
    return Tool(
        name=name,
        description=inspect.cleandoc(description),
        handler=handler,
        shape=shape,
        input_schema=schema,
        output=output,
        execution=execution,
        prepare=prepare,
        timeout_s=timeout_s,
        guidelines=tuple(guidelines),
        services=tuple(services),
    )


def types_problem(kinds: object) -> str | None:
    """What forbids `kinds` as the classes of services, as a sentence's end; None is allowed."""
    if isinstance(kinds, str) or not isinstance(kinds, Sequence):
        return f"must be a sequence of classes, not {shown(kinds)}"
    for position, kind in enumerate(kinds):
        if not isinstance(kind, type):
            return f"must hold classes, but item {position} is {shown(kind)}"
        try:
            isinstance(None, kind)
        except TypeError:
            return (
                f"must hold classes that isinstance takes: make {kind.__name__} runtime_checkable"
            )
    return None


def _name_problem(name: object) -> str | None:
    if isinstance(name, str) and NAME.fullmatch(name):
        return None
    return (
        f"must be 1 to 64 ASCII letters, digits, `_` and `-`, not begin with a digit or `-`: "
        f"{shown(name)}"
    )


def _timeout_problem(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number of seconds or None, not {shown(value)}"
    return None if 0 < value < float("inf") else f"must be above 0 and finite, not {value}"
