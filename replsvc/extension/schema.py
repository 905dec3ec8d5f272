"""JSON Schema of a tool's input, in the subset that models' interfaces agree on."""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel

_DEFS = "#/$defs/"


def portable_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of `model`: references written out, one allowed value as an enum, no titles.

    A type that contains itself keeps its references, and `$defs` has it: there is no other way to
    say it. Raises what pydantic raises for types without a schema.
    """
    schema = model.model_json_schema()
    defs: dict[str, Any] = schema.pop("$defs", {})
    recursive = {name for name in defs if _reaches(name, name, defs)}
    plain = _plain(schema, defs, recursive)
    plain.pop("description", None)  # the tool has its own
    kept = {name: _plain(defs[name], defs, recursive) for name in sorted(recursive)}
    if "$ref" in plain:
        # The root must say that it is an object.
        plain = copy.deepcopy(kept[plain["$ref"].removeprefix(_DEFS)])
    plain.setdefault("type", "object")
    plain.setdefault("properties", {})
    return {**plain, "$defs": kept} if kept else plain


def _references(node: Any) -> set[str]:
    found: set[str] = set()
    todo = [node]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if isinstance(ref := item.get("$ref"), str):
                found.add(ref.removeprefix(_DEFS))
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return found


def _reaches(start: str, goal: str, defs: dict[str, Any]) -> bool:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in _references(defs[todo.pop()]):
            if name == goal:
                return True
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return False


def _plain(node: Any, defs: dict[str, Any], recursive: set[str], *, names: bool = False) -> Any:
    """`names` says that the keys are fields' names, of which none is a keyword of JSON Schema."""
    if isinstance(node, list):
        return [_plain(item, defs, recursive) for item in node]
    if not isinstance(node, dict):
        return node
    if names:
        return {key: _plain(value, defs, recursive) for key, value in node.items()}
    ref = node.get("$ref")
    if isinstance(ref, str) and (name := ref.removeprefix(_DEFS)) not in recursive:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _plain({**defs[name], **beside}, defs, recursive)
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title":
            continue
        if key in ("default", "examples", "enum", "const"):
            out[key] = value
        else:
            out[key] = _plain(value, defs, recursive, names=key == "properties")
    if "const" in out:
        out.setdefault("enum", [out.pop("const")])
    return out
