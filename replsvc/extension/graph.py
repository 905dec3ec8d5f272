"""The extensions of a list with all that they depend on: each once, dependencies first."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replsvc.extension.contract import Extension
from replsvc.extension.issues import raised, shown
from replsvc.extension.naming import qualified_name
from replsvc.extension.secret import redact, secrets_in

CALLABLES = ("code", "description")
"""What a module-based extension has."""


@dataclass(slots=True, eq=False)
class Item:
    """One extension while it is being resolved: an object with its opts.

    `index` is its place in the list, or that of whatever was listed and leads to it; `parent` is
    the first to depend on it, None where it is listed itself. `needs` are those it depends on.
    """

    index: int
    thing: object
    parent: Item | None = None
    opts: Mapping[str, Any] = field(default_factory=lambda: types.MappingProxyType({}))
    name: str = ""
    issues: list[str] = field(default_factory=list)
    needs: list[Item] = field(default_factory=list)
    is_open: bool = False
    is_done: bool = False

    @property
    def place(self) -> str:
        """Where somebody finds it."""
        if self.parent is None:
            return f"extensions[{self.index}]"
        whose = self.parent.name or f"extensions[{self.index}]"
        return f"a dependency of {whose}"

    def all_issues(self) -> list[str]:
        """Its issues, each saying which extension it is about."""
        label = self.place + (f" ({self.name})" if self.name else "")
        secrets = secrets_in(self.opts)
        return [redact(f"{label}: {issue}", secrets) for issue in self.issues]


class Graph:
    """See the module. `items` are in their order; `cycles` are paths that end where they begin.

    The order is depth-first from the list, as it is declared. Iterative: a chain may be long.
    """

    def __init__(self, listed: Sequence[object]) -> None:
        self.items: list[Item] = []
        self.cycles: list[list[Item]] = []
        self._alike: dict[int, list[Item]] = {}
        for index, thing in enumerate(listed):
            root = self._known(_read(index, thing, None))
            if not root.is_done:
                self._visit(root)

    def _known(self, item: Item) -> Item:
        """The item of the same object with equal opts, if there is one."""
        alike = self._alike.setdefault(id(item.thing), [])
        if not item.issues:
            for other in alike:
                if not other.issues and _same(item.opts, other.opts):
                    return other
        alike.append(item)
        return item

    def _visit(self, root: Item) -> None:
        root.is_open = True
        path: list[tuple[Item, Iterator[object]]] = [(root, iter(_dependencies(root)))]
        while path:
            item, rest = path[-1]
            for dependency in rest:
                found = self._known(_read(item.index, dependency, item))
                item.needs.append(found)
                if found.is_open:
                    names = [one for one, _ in path]
                    self.cycles.append([*names[names.index(found) :], found])
                elif not found.is_done:
                    found.is_open = True
                    path.append((found, iter(_dependencies(found))))
                    break
            else:
                path.pop()
                item.is_open, item.is_done = False, True
                self.items.append(item)

    def cycle_issues(self) -> list[str]:
        """One a cycle, once the items have their names."""
        return [
            "extensions depend on each other in a circle: "
            + " -> ".join(item.name or item.place for item in cycle)
            for cycle in self.cycles
        ]


def _dependencies(item: Item) -> Sequence[object]:
    if item.issues:
        return ()
    try:
        found = getattr(item.thing, "dependencies", ())
    except Exception as error:  # noqa: BLE001 - a stranger's property may raise anything
        item.issues.append(f"can't give its dependencies: {raised(error)}")
        return ()
    if isinstance(found, str) or not isinstance(found, Sequence):
        item.issues.append(f"its dependencies must be a sequence, not {shown(found)}")
        return ()
    return found


def _read(index: int, listed: object, parent: Item | None) -> Item:
    """What was listed; with issues when it is no extension or its opts are none."""
    if not isinstance(listed, tuple):
        item = Item(index, listed, parent)
    elif len(listed) == 2:
        item = Item(index, listed[0], parent)
        _read_opts(item, listed[1])
    else:
        item = Item(index, listed, parent)
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


def _read_opts(item: Item, opts: object) -> None:
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
