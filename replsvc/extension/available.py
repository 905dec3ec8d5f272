"""Available extensions: those that an operator's config lets a request choose from by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension, name_problem
from replsvc.extension.issues import extension_error, nearest, shown
from replsvc.extension.references import Loaded, Reference, load_all

_SELECTED = ("name", "opts")
_INLINE = ("code", "description")


class Available(Mapping[str, Loaded]):
    """Public name to loaded extension, in the order of the references; read-only.

    The public name is the extension's `name`, else that of its object or file. Loading runs the
    code of the modules that the references name. Raises `ExtensionError` with the issues of all of
    them, also for a name that two of them have.
    """

    def __init__(self, references: Sequence[str | Reference] = ()) -> None:
        self._by_name: dict[str, Loaded] = {}
        issues = []
        for index, loaded in enumerate(load_all(references)):
            if loaded.name in self._by_name:
                issues.append(
                    f"extensions[{index}]: another extension is called {shown(loaded.name)} too; "
                    "requests could not tell them apart, so name one of them otherwise"
                )
            elif problem := name_problem(loaded.name):
                issues.append(f"extensions[{index}]: its name {problem}")
            self._by_name.setdefault(loaded.name, loaded)
        if issues:
            raise extension_error(issues)

    def __getitem__(self, name: str) -> Loaded:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Available({list(self)!r})"


def select(available: Mapping[str, Loaded], items: Sequence[object]) -> list[object]:
    """Turn a request's extensions into a list for `resolve`; nothing of the host is imported.

    Each item is a JSON object: `{"name": ..., "opts": {...}}` chooses one of `available`, whose own
    opts are defaults under the request's, key by key; `{"code": ..., "description": ...}` is an
    inline extension, of strings only (null counts as absent). Raises one `ExtensionError` with the
    issues of all items, in their order.
    """
    issues: list[str] = []
    selected: list[object] = []
    for index, item in enumerate(items):
        try:
            selected.append(_select(available, item))
        except ExtensionError as error:
            issues += [f"extensions[{index}]: {issue}" for issue in error.issues]
    if issues:
        raise extension_error(issues)
    return selected


def _select(available: Mapping[str, Loaded], item: object) -> object:
    if not isinstance(item, Mapping):
        raise ExtensionError(
            "must be an object with name and opts, or with code and description, "
            f"not {type(item).__name__}"
        )
    named = "name" in item or "opts" in item
    allowed = _SELECTED if named else _INLINE
    issues = [_unknown(key, allowed) for key in item if key not in allowed]
    if named:
        name, opts = item.get("name"), item.get("opts", {})
        if not isinstance(name, str):
            issues.append("name must be a string: that of an available extension")
        elif name not in available:
            known = ", ".join(available) or "none"
            issues.append(
                f"no extension called {shown(name)} is available here."
                f"{nearest(name, [*available])} Available: {known}."
            )
        if not isinstance(opts, Mapping):
            issues.append(f"opts must be an object, not {type(opts).__name__}")
        if issues:
            raise extension_error(issues)
        return _with_opts(available[str(name)], dict(opts))
    issues += [
        f"{key} must be a string, not {type(item[key]).__name__}"
        for key in _INLINE
        if not isinstance(item.get(key), str | None)
    ]
    if issues:
        raise extension_error(issues)
    return Extension(code=item.get("code"), description=item.get("description"))


def _with_opts(loaded: Loaded, opts: Mapping[str, Any]) -> object:
    if isinstance(loaded.thing, Extension) and opts and loaded.thing.options is None:
        raise ExtensionError(f"{shown(loaded.name)} takes no opts")
    return Loaded(loaded.name, loaded.thing, {**loaded.opts, **opts}).item


def _unknown(key: object, allowed: Sequence[str]) -> str:
    if key in (*_SELECTED, *_INLINE):
        return f"{key} can't be given with name or opts: choose one by name, or write one inline"
    return (
        f"unknown field {shown(key)}.{nearest(str(key), allowed)} Allowed: {' and '.join(allowed)}."
    )
