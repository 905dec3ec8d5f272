"""The contract: the values that an extension's author writes.

An inline extension is `Extension(code=..., description=...)`. A module-based one is any object with
the callables `code(opts)` and `description(opts)`, listed bare or as `(object, opts)`; it needs
nothing from here, and may use `quote` and `Secret`. The full form adds what runs beside the
service: tools, and options that a model checks.
"""

from __future__ import annotations

import ast
import inspect
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from replsvc.extension.context import SetupContext, ToolContext
from replsvc.extension.hooks import Block, HookContext, Hooks, ToolCallEvent
from replsvc.extension.issues import extension_error, shown
from replsvc.extension.results import Image, ToolResult
from replsvc.extension.secret import Secret
from replsvc.extension.signature import is_model
from replsvc.extension.tools import Tool, tool, types_problem

__all__ = [
    "Block",
    "Code",
    "Extension",
    "HookContext",
    "Hooks",
    "Image",
    "Quoted",
    "Secret",
    "SetupContext",
    "Tool",
    "ToolCallEvent",
    "ToolContext",
    "ToolResult",
    "tool",
]

MAX_NAME = 200
"""Characters of an extension's name."""


@dataclass(frozen=True, slots=True)
class Quoted:
    """A function's body as setup code; made by `quote`.

    What crosses into the kernel is text and a table; the kernel compiles it with its own Python:

    - `source` is the function's lines as they stand in `file`, from its `def` line to its last, not
      dedented, so that strings over several lines keep their content. If the `def` is indented, a
      line `if True:` precedes them.
    - `first_line` is the number in `file` of the first line of `source` (so one less than that of
      the `def` where `if True:` precedes it).
    - `body_of` is the function's name. The code is the body of the first function of that name in
      `source`, with every line number raised by `first_line - 1`, run as a module.
    - `values` has for each parameter the literal that it is bound to before the code runs.
    - `secrets` are the texts in `values` that must be redacted.
    """

    source: str
    file: str
    first_line: int
    body_of: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


Code: TypeAlias = Quoted | ast.Module | list[ast.stmt] | Path | str
"""Setup code: what `quote` returns (preferred), an AST, a file, or source."""


Setup: TypeAlias = Callable[[SetupContext], Any]
"""Gives a resource: what it returns or awaits, or what an async generator or context manager does.
"""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """An extension written in place: code, a part of `repl`'s description, tools, a resource.

    - `code` runs in the kernel before user code; its public names become the user's.
    - `description` is shown to the model, after the tool's base text.
    - `name` is for errors, logs and lists; without one it is `inline[i]`, its place in the list.
    - `tools` are what an agent calls directly; made by `tool`.
    - `options` is a pydantic model for opts: the extension may then be listed as
      `(extension, opts)`. Opts are checked before anything runs; tools find them in `ctx.options`,
      and `code` and `description` may be functions that take them.
    - `setup` gives a resource, once a session: tools find it in `ctx.resource`. `dispose` ends it
      when the session does, however that is. As an async generator it does both.
    - `hooks` have a say in what happens in the session.
    - `dependencies` are extensions that this one needs, in the form that they are listed in: they
      come before it.
    - `provides` are classes that the resource is an instance of: to those that depend on this
      extension it is a service of each of them.
    - `requires` are packages that the kernel must have, as pip would be asked for them
      (`httpx>=0.27`); `network` are hosts that it must reach.

    An empty string counts as given. Raises `ExtensionError` with every problem at once: nothing
    given, or a field of a wrong type.
    """

    code: Code | Callable[[Any], Code | None] | None = None
    description: str | Callable[[Any], str | None] | None = None
    name: str | None = None
    requires: Sequence[str] = ()
    network: Sequence[str] = ()
    tools: Sequence[Tool[Any]] = ()
    options: type[BaseModel] | None = None
    setup: Setup | None = None
    dispose: Callable[[Any], object] | None = None
    hooks: Hooks | None = None
    # Neither repr nor hash follows it: a chain may be long.
    dependencies: Sequence[object] = field(default=(), repr=False, hash=False)
    provides: Sequence[type] = ()

    def __post_init__(self) -> None:
        issues = []
        given = (self.code, self.description, self.setup, self.hooks)
        if all(one is None for one in given) and not self.tools and not self.dependencies:
            issues.append(
                "an Extension needs code, a description, tools, setup, hooks or dependencies"
            )
        of_opts = self.options is not None
        if not (of_opts and callable(self.code)) and (problem := code_problem(self.code)):
            issues.append(f"code {problem}")
        if not (of_opts and callable(self.description)) and (
            problem := description_problem(self.description)
        ):
            issues.append(f"description {problem}")
        if self.name is not None and (problem := name_problem(self.name)):
            issues.append(f"name {problem}")
        issues += [
            f"{label} {problem}"
            for label, value in (("requires", self.requires), ("network", self.network))
            if (problem := _texts_problem(value))
        ]
        issues += _tools_problems(self.tools)
        issues += self._resource_problems()
        if of_opts and not is_model(self.options):
            issues.append(f"options must be a pydantic model, not {shown(self.options)}")
        if issues:
            who = f"Extension {shown(self.name)}: " if isinstance(self.name, str) else "Extension: "
            raise extension_error([who + issue for issue in issues])
        # Copies, so that nobody changes a frozen value by what it was built from.
        object.__setattr__(self, "requires", tuple(self.requires))
        object.__setattr__(self, "network", tuple(self.network))
        object.__setattr__(self, "tools", tuple(self.tools))
        object.__setattr__(self, "dependencies", tuple(self.dependencies))
        object.__setattr__(self, "provides", tuple(self.provides))
        if isinstance(self.code, list):
            object.__setattr__(self, "code", ast.Module(body=[*self.code], type_ignores=[]))

    def _resource_problems(self) -> list[str]:
        functions: dict[str, object] = {"setup": self.setup, "dispose": self.dispose}
        problems = [
            f"{label} must be callable, not {shown(value)}"
            for label, value in functions.items()
            if value is not None and not callable(value)
        ]
        if inspect.isgeneratorfunction(self.setup):
            problems.append("setup is a generator; make it async")
        for label, given in (("dispose", self.dispose), ("provides", self.provides)):
            if given and self.setup is None:
                problems.append(f"{label} is given without setup, which gives the resource")
        if isinstance(self.dependencies, str) or not isinstance(self.dependencies, Sequence):
            problems.append(
                f"dependencies must be a sequence of extensions, not {shown(self.dependencies)}"
            )
        hooks: object = self.hooks
        if not isinstance(hooks, Hooks | None):
            problems.append(f"hooks must be Hooks(...), not {shown(hooks)}")
        if problem := types_problem(self.provides):
            problems.append(f"provides {problem}")
        return problems


def name_problem(name: object) -> str | None:
    """What forbids `name` as an extension's name, as a sentence's end; None when nothing does.

    Names are data: any text of 1 to 200 characters without control characters, line separators and
    lone surrogates, and not only spaces.
    """
    if not isinstance(name, str):
        return f"must be a str, not {type(name).__qualname__}"
    if not name.strip():
        return "must not be empty"
    if len(name) > MAX_NAME:
        return f"must be at most {MAX_NAME} characters, not {len(name)}"
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            return f"must not contain {character!a} (control characters, line separators)"
    return None


def code_problem(code: object) -> str | None:
    """What forbids `code` as setup code by its type, as a sentence's end; None is allowed."""
    if code is None or isinstance(code, Quoted | ast.Module | Path | str):
        return None
    if isinstance(code, list):
        for position, statement in enumerate(code):
            if not isinstance(statement, ast.stmt):
                kind = type(statement).__qualname__
                return f"is a list whose item {position} is {kind}, not an ast.stmt"
        return None
    hint = " (wrap the function in `quote`)" if callable(code) else ""
    return (
        "must be what `quote` returns, an ast.Module, a list of ast.stmt, a Path or a str, "
        f"not {type(code).__qualname__}{hint}"
    )


def description_problem(description: object) -> str | None:
    """What forbids `description`, as a sentence's end; None is allowed."""
    if description is None:
        return None
    if not isinstance(description, str):
        return f"must be a str, not {type(description).__qualname__}"
    return surrogate_problem(description)


def surrogate_problem(text: str) -> str | None:
    """Whether `text` can't be sent as UTF-8, as a sentence's end."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        return f"contains a lone surrogate in line {line}, which UTF-8 can't carry"
    return None


def _tools_problems(tools: object) -> list[str]:
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        return [f"tools must be a sequence of what `tool` makes, not {type(tools).__qualname__}"]
    hint = " (make it a tool: `tool(handler=...)`)"
    problems = [
        f"tools must hold what `tool` makes, but item {position} is {shown(one)}"
        + (hint if callable(one) else "")
        for position, one in enumerate(tools)
        if not isinstance(one, Tool)
    ]
    names = [one.name for one in tools if isinstance(one, Tool)]
    problems += [
        f"tools has {names.count(name)} that are named {shown(name)}"
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    return problems


def _texts_problem(values: object) -> str | None:
    if isinstance(values, str) or not isinstance(values, Sequence):
        return f"must be a sequence of str, not {type(values).__qualname__}"
    for position, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            return f"must hold non-empty str, but item {position} is {shown(value)}"
    return None
