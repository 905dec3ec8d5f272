"""A handler's parameters: from its annotations to the model of its input."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from replsvc.extension.context import ToolContext
from replsvc.extension.issues import raised, shown

Parameter = inspect.Parameter


@dataclass(frozen=True, slots=True)
class Shape:
    """How a handler takes its input.

    `model` checks the input. It goes whole to the parameter `whole`, or field by field to those of
    `fields` (parameter to the model's attribute). `context` is the parameter for the context.
    """

    model: type[BaseModel]
    whole: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    context: str | None = None

    def arguments(self, value: BaseModel, context: ToolContext[Any]) -> dict[str, Any]:
        """The handler's keyword arguments for a checked input."""
        given = {name: getattr(value, attribute) for name, attribute in self.fields}
        if self.whole is not None:
            given[self.whole] = value
        if self.context is not None:
            given[self.context] = context
        return given


def place_of(handler: object) -> str:
    """`file.py:12`, where a handler is defined; empty where nothing says so."""
    code = getattr(_function(handler), "__code__", None) if callable(handler) else None
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _function(handler: object) -> object:
    """The function whose annotations a handler has."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler) and not isinstance(handler, type):
        handler = type(handler).__call__
    assert callable(handler)
    return inspect.unwrap(handler)


def shape_of(
    handler: Callable[..., Any], model: type[BaseModel] | None, name: str
) -> tuple[Shape | None, list[str]]:
    """How `handler` takes its input, and the issues of its parameters; one of them is empty.

    `model` is the input's, where the author gave one.
    """
    if not callable(handler):
        return None, [f"handler must be callable, not {shown(handler)}"]
    if model is not None and not is_model(model):
        return None, [f"input must be a pydantic model, not {shown(model)}"]
    function = _function(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return None, ["handler is a generator; return one result, and use ctx.update before it"]
    try:
        parameters = inspect.signature(handler).parameters.values()
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # noqa: BLE001 - annotations are expressions of a stranger
        return None, [
            f"the handler's annotations can't be read: {raised(error)}; "
            "types that it names must be known in its module"
        ]
    issues = []
    context = None
    rest: list[tuple[Parameter, Any]] = []
    for parameter in parameters:
        hint = hints.get(parameter.name, Parameter.empty)
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            issues.append(f"parameter {parameter.name} must be one that is given by its name")
        elif hint is Parameter.empty:
            issues.append(f"parameter {parameter.name} has no type; annotate it")
        elif (typing.get_origin(hint) or hint) is ToolContext:
            if context is not None:
                issues.append(f"parameters {context} and {parameter.name} both take the context")
            context = parameter.name
        else:
            rest.append((parameter, hint))
    if issues:
        return None, issues
    if model is not None:
        if len(rest) != 1:
            return None, [f"with input={model.__name__} the handler takes it as one parameter"]
        return Shape(model, whole=rest[0][0].name, context=context), []
    if len(rest) == 1 and is_model(rest[0][1]):
        return Shape(rest[0][1], whole=rest[0][0].name, context=context), []
    return _of_fields(rest, context, name)


def _of_fields(
    rest: list[tuple[Parameter, Any]], context: str | None, name: str
) -> tuple[Shape | None, list[str]]:
    # Parameters may have names that a model's attributes can't.
    attributes = {parameter.name: f"field_{n}" for n, (parameter, _) in enumerate(rest)}
    try:
        definitions: dict[str, Any] = {
            attributes[parameter.name]: (
                Annotated[hint, Field(alias=parameter.name)],
                ... if parameter.default is Parameter.empty else parameter.default,
            )
            for parameter, hint in rest
        }
        model = create_model(f"{name}_input", __config__=ConfigDict(extra="forbid"), **definitions)
    except Exception as error:  # noqa: BLE001 - pydantic asks a stranger's types
        return None, [f"no input can be made of the handler's parameters: {raised(error)}"]
    return Shape(model, fields=tuple(attributes.items()), context=context), []


def is_model(hint: object) -> bool:
    """Whether it is a pydantic model's class."""
    return isinstance(hint, type) and issubclass(hint, BaseModel)
