"""Resolving: from the list that a session was given to named values, all issues at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from replsvc.errors import ExtensionError
from replsvc.extension.contract import (
    Extension,
    Quoted,
    code_problem,
    description_problem,
    name_problem,
)
from replsvc.extension.graph import CALLABLES, Graph, Item
from replsvc.extension.issues import clip, extension_error, raised, shown
from replsvc.extension.naming import FreeNames, qualified_name
from replsvc.extension.needs import Surroundings, unmet
from replsvc.extension.secret import redaction_problem, secrets_in
from replsvc.extension.services import uncovered
from replsvc.extension.source import SourceError, setup_code

if TYPE_CHECKING:
    from replsvc.extension.contract import Code, Setup
    from replsvc.extension.hooks import Hooks
    from replsvc.extension.tools import Tool
    from replsvc_kernels.messages import SetupCode

BUILT_IN = ("repl",)
"""Tools that every session has."""


@dataclass(frozen=True, slots=True)
class ResolvedExtension:
    """An extension as a session uses it.

    `setup` is None without code, `description` None without a part in the tool's description.
    `secrets` are texts that must not be seen in anything we write down. `options` are its checked
    opts. `dependencies` are names of those that it depends on itself. `acquire` gives its resource,
    `dispose` ends it, `provides` are the services that the resource is.
    """

    name: str
    setup: SetupCode | None = None
    description: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    requires: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    tools: tuple[Tool[Any], ...] = ()
    options: Any = field(default=None, repr=False, compare=False)
    dependencies: tuple[str, ...] = ()
    acquire: Setup | None = None
    dispose: Callable[[Any], object] | None = None
    provides: tuple[type, ...] = ()
    hooks: Hooks | None = None


def resolve(
    listed: Sequence[object], surroundings: Surroundings | None = None
) -> tuple[ResolvedExtension, ...]:
    """Resolve the extensions of one session; the only time that their callables run.

    The order is depth-first as they are listed, what an extension depends on before it, each once.

    Each item is an `Extension`, or an object (class, instance or module) with the callables
    `code(opts)` and `description(opts)`, bare or as `(object, opts)`. Both are called once with the
    same read-only copy of `opts` (whose values are not copied); None from one of them means that
    there is none, but not both may be. The same object with equal opts counts once, where it is
    listed first. An extension without a name is called `inline[i]` by its place in the list, or by
    its object's qualified name; where that is taken, `#2` and so on is added. With `surroundings`,
    what an extension requires and is not there is an issue of it.

    Raises one `ExtensionError` with the issues of all extensions: by their order, then names that
    several of them were given, circles of dependencies, tools' names that several have, and
    services that tools need and nobody provides to them.
    """
    graph = Graph(listed)
    sound = [item for item in graph.items if not item.issues]
    clashes = _name(sound)
    found = [_resolved(item, surroundings) for item in sound if not item.issues]
    resolved = [extension for extension in found if extension is not None]
    issues = [issue for item in graph.items for issue in item.all_issues()] + clashes
    issues += graph.cycle_issues() + _tool_clashes(resolved)
    if not issues:  # else what lacks may be what is broken
        issues = uncovered(resolved)
    if issues:
        raise extension_error(issues)
    return tuple(resolved)


def has_needs(listed: Sequence[object]) -> bool:
    """Whether any of `listed` requires something, so that `resolve` should know what there is."""
    things = (item.thing for item in Graph(listed).items)
    return any(isinstance(one, Extension) and (one.requires or one.network) for one in things)


def _name(items: Sequence[Item]) -> list[str]:
    """Name `items`; the issues of names that were given to several."""
    given: dict[str, list[Item]] = {}
    for item in items:
        if isinstance(item.thing, Extension) and item.thing.name is not None:
            item.name = item.thing.name
            given.setdefault(item.name, []).append(item)
    free = FreeNames(set(given))
    for item in items:
        if not item.name:
            inline = isinstance(item.thing, Extension)
            item.name = free.take(f"inline[{item.index}]" if inline else qualified_name(item.thing))
            if problem := name_problem(item.name):
                item.issues.append(f"its name {problem}")
    return [
        f"{', '.join(item.place for item in named)} are all named {shown(name)}; "
        "give each a name of its own"
        for name, named in given.items()
        if len(named) > 1
    ]


def _resolved(item: Item, surroundings: Surroundings | None) -> ResolvedExtension | None:
    """Call what is to be called and check it; None when that left issues on `item`."""
    thing = item.thing
    options: Any = item.opts
    given: tuple[object, object]
    if isinstance(thing, Extension):
        given = thing.code, thing.description
        if surroundings is not None:
            item.issues += unmet(thing.requires, thing.network, surroundings)
        if thing.options is not None:
            try:
                options = thing.options.model_validate(dict(item.opts))
            except ValidationError as error:
                item.issues += _option_issues(error)
                return None
            except Exception as error:  # noqa: BLE001 - a stranger's validators may raise anything
                item.issues.append(f"its options raised {raised(error)}")
                return None
        if callable(thing.code) or callable(thing.description):
            given = (
                _of_options(item, "code", thing.code, options),
                _of_options(item, "description", thing.description, options),
            )
    else:
        given = _call(item, "code", item.opts), _call(item, "description", item.opts)
        if given == (None, None) and not item.issues:
            item.issues.append("code(opts) and description(opts) both returned None; give one")
    problems = code_problem(given[0]), description_problem(given[1])
    item.issues += [
        f"what {label}(opts) returned {problem}"
        for label, problem in zip(CALLABLES, problems, strict=True)
        if problem
    ]
    if any(problems) or (given == (None, None) and item.issues):
        return None
    code = cast("Code | None", given[0])
    description = cast("str | None", given[1])
    setup = None
    if code is not None:
        try:
            setup = setup_code(item.name, code)
        except SourceError as error:
            item.issues.append(f"code {error}")
    quoted = code.secrets if isinstance(code, Quoted) else ()
    secrets = tuple(dict.fromkeys([*secrets_in(item.opts), *quoted]))
    item.issues += [problem for secret in secrets if (problem := redaction_problem(secret))]
    if item.issues:
        return None
    return ResolvedExtension(
        name=item.name,
        setup=setup,
        description=description,
        secrets=secrets,
        requires=tuple(thing.requires) if isinstance(thing, Extension) else (),
        network=tuple(thing.network) if isinstance(thing, Extension) else (),
        tools=tuple(thing.tools) if isinstance(thing, Extension) else (),
        options=options,
        dependencies=tuple(dict.fromkeys(one.name for one in item.needs)),
        acquire=thing.setup if isinstance(thing, Extension) else None,
        dispose=thing.dispose if isinstance(thing, Extension) else None,
        provides=tuple(thing.provides) if isinstance(thing, Extension) else (),
        hooks=thing.hooks if isinstance(thing, Extension) else None,
    )


def _option_issues(error: ValidationError) -> list[str]:
    """One issue a field, without the value: it may be a secret."""
    return [
        f"opts{''.join(f'.{part}' for part in item['loc'])}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _of_options(item: Item, label: str, given: object, options: object) -> Any:
    return _call(item, label, options) if callable(given) else given


def _tool_clashes(extensions: Sequence[ResolvedExtension]) -> list[str]:
    """The issues of tools that could not be told apart by their names."""
    owners: dict[str, list[str]] = {}
    for extension in extensions:
        for tool in extension.tools:
            owners.setdefault(tool.name, []).append(extension.name)
    issues = [
        f"extensions {' and '.join(map(shown, named))} both have a tool {shown(name)}; "
        "name one of them otherwise"
        for name, named in owners.items()
        if len(named) > 1
    ]
    return issues + [
        f"extension {shown(owners[name][0])} has a tool {shown(name)}, which is built in; "
        "name it otherwise"
        for name in BUILT_IN
        if name in owners
    ]


def _call(item: Item, label: str, opts: object) -> Any:
    """What `code(opts)` or `description(opts)` returned; None with an issue when it raised."""
    function = getattr(item.thing, label)
    try:
        inspect.signature(function).bind(opts)
    except TypeError:
        hint = ""
        if isinstance(item.thing, type):
            hint = "; make it a staticmethod, or list an instance"
        item.issues.append(f"{label} must be callable as {label}(opts){hint}")
        return None
    except ValueError:
        pass  # a builtin that doesn't say what it takes
    try:
        result = function(opts)
    except ExtensionError as error:
        item.issues += [f"{label}(opts): {issue}" for issue in error.issues]
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's code may raise anything
        item.issues.append(clip(f"{label}(opts) raised {raised(error)}"))
        return None
    if inspect.iscoroutine(result):
        result.close()
        item.issues.append(f"{label} is async; it must be a plain function")
        return None
    return result
