"""Resolving: from the list that a session was given to named values, all issues at once."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
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
from replsvc.extension.issues import clip, extension_error, raised, shown
from replsvc.extension.naming import FreeNames, qualified_name
from replsvc.extension.needs import Surroundings, unmet
from replsvc.extension.secret import redact, redaction_problem, secrets_in
from replsvc.extension.source import SourceError, setup_code

if TYPE_CHECKING:
    from replsvc.extension.contract import Code
    from replsvc.extension.tools import Tool
    from replsvc_kernels.messages import SetupCode

BUILT_IN = ("repl",)
"""Tools that every session has."""
CALLABLES = ("code", "description")
"""What a module-based extension has."""


@dataclass(frozen=True, slots=True)
class ResolvedExtension:
    """An extension as a session uses it.

    `setup` is None without code, `description` None without a part in the tool's description.
    `secrets` are texts that must not be seen in anything we write down. `options` are its checked
    opts.
    """

    name: str
    setup: SetupCode | None = None
    description: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    requires: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    tools: tuple[Tool[Any], ...] = ()
    options: Any = field(default=None, repr=False, compare=False)


def resolve(
    listed: Sequence[object], surroundings: Surroundings | None = None
) -> tuple[ResolvedExtension, ...]:
    """Resolve the extensions of one session, in order; the only time that their callables run.

    Each item is an `Extension`, or an object (class, instance or module) with the callables
    `code(opts)` and `description(opts)`, bare or as `(object, opts)`. Both are called once with the
    same read-only copy of `opts` (whose values are not copied); None from one of them means that
    there is none, but not both may be. The same object with equal opts counts once, where it is
    listed first. An extension without a name is called `inline[i]` by its place in the list, or by
    its object's qualified name; where that is taken, `#2` and so on is added. With `surroundings`,
    what an extension requires and is not there is an issue of it.

    Raises one `ExtensionError` with the issues of all extensions: by their order in the list, then
    names that several of them were given, then tools' names that several have.
    """
    items: list[_Item] = []
    alike: dict[int, list[_Item]] = {}
    for index, thing in enumerate(listed):
        item = _read(index, thing)
        known = alike.setdefault(id(item.thing), [])
        if item.issues or not any(_same(item.opts, other.opts) for other in known):
            known.append(item)
            items.append(item)
    clashes = _name([item for item in items if not item.issues])
    resolved = [_resolved(item, surroundings) for item in items if not item.issues]
    issues = [issue for item in items for issue in item.all_issues()] + clashes
    issues += _tool_clashes([extension for extension in resolved if extension is not None])
    if issues:
        raise extension_error(issues)
    return tuple(extension for extension in resolved if extension is not None)


@dataclass(slots=True, eq=False)
class _Item:
    """One listed extension while it is being resolved."""

    index: int
    thing: object
    opts: Mapping[str, Any] = field(default_factory=lambda: types.MappingProxyType({}))
    name: str = ""
    issues: list[str] = field(default_factory=list)

    def all_issues(self) -> list[str]:
        """Its issues, each saying which extension it is about."""
        label = f"extensions[{self.index}]" + (f" ({self.name})" if self.name else "")
        secrets = secrets_in(self.opts)
        return [redact(f"{label}: {issue}", secrets) for issue in self.issues]


def has_needs(listed: Sequence[object]) -> bool:
    """Whether any of `listed` requires something, so that `resolve` should know what there is."""
    return any(isinstance(item, Extension) and (item.requires or item.network) for item in listed)


def _read(index: int, listed: object) -> _Item:
    """What was listed at `index`; with issues when it is no extension or its opts are none."""
    if not isinstance(listed, tuple):
        item = _Item(index, listed)
    elif len(listed) == 2:
        item = _Item(index, listed[0])
        _read_opts(item, listed[1])
    else:
        item = _Item(index, listed)
        item.issues.append(f"is a tuple of {len(listed)}; list an object or (object, opts)")
        return item
    thing = item.thing
    if isinstance(thing, Extension):
        if isinstance(listed, tuple) and thing.options is None:
            item.issues.append("an Extension without `options` takes no opts; list it bare")
    elif missing := _missing(thing):
        if isinstance(thing, type | types.ModuleType) or len(missing) < len(CALLABLES):
            item.name = qualified_name(thing)
            kind = "module" if isinstance(thing, types.ModuleType) else "object"
            item.issues += [f"{kind} {item.name} {what}" for what in missing]
        else:
            item.issues.append(
                f"{shown(thing)} is no extension; list an Extension, or an object with "
                "code(opts) and description(opts), bare or as (object, opts)"
            )
    return item


def _read_opts(item: _Item, opts: object) -> None:
    if not isinstance(opts, Mapping):
        item.issues.append(f"opts must be a mapping, not {type(opts).__qualname__}")
        return
    wrong = [key for key in opts if not isinstance(key, str)]
    item.issues += [f"opts must have names as keys, not {shown(key)}" for key in wrong]
    item.opts = types.MappingProxyType(dict(opts))


def _missing(thing: object) -> list[str]:
    missing = []
    for label in CALLABLES:
        try:
            found = getattr(thing, label)
        except AttributeError:
            missing.append(f"has no callable {label}(opts)")
        except Exception as error:  # noqa: BLE001 - a stranger's property may raise anything
            missing.append(f"can't give its {label}: {raised(error)}")
        else:
            if not callable(found):
                missing.append(f"has no callable {label}(opts); its `{label}` is {shown(found)}")
    return missing


def _same(one: object, other: object) -> bool:
    """Whether opts are equal and of equal types; what can't be compared is not."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a stranger's __eq__ may raise anything
        return False


def _name(items: Sequence[_Item]) -> list[str]:
    """Name `items`; the issues of names that were given to several."""
    given: dict[str, list[_Item]] = {}
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
        f"{', '.join(f'extensions[{item.index}]' for item in named)} are all named {shown(name)}; "
        "give each a name of its own"
        for name, named in given.items()
        if len(named) > 1
    ]


def _resolved(item: _Item, surroundings: Surroundings | None) -> ResolvedExtension | None:
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
    )


def _option_issues(error: ValidationError) -> list[str]:
    """One issue a field, without the value: it may be a secret."""
    return [
        f"opts{''.join(f'.{part}' for part in item['loc'])}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _of_options(item: _Item, label: str, given: object, options: object) -> Any:
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


def _call(item: _Item, label: str, opts: object) -> Any:
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
