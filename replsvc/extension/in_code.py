"""A tool as code in the kernel sees it: what the kernel is told of it, and its line in texts."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from typing import Any

from replsvc.extension.tools import Tool
from replsvc_kernels.messages import ToolSpec

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}
MAX_NESTED = 4
MAX_DEFAULT = 60
"""Characters of a default value; a longer one is `...`."""


def spec_of(tool: Tool[Any]) -> ToolSpec:
    """What a kernel is told of `tool`.

    Where the tool prepares its input, any names may be given: what they mean is known there.
    """
    parameters = dict(tool.input_schema)
    if tool.prepare is not None:
        parameters |= {"required": [], "additionalProperties": True}
    return ToolSpec(tool.name, tool.full_description(), parameters, signature_of(tool))


def signature_of(tool: Tool[Any]) -> str:
    """`name(*, text: str, tags: list[str] = [])`: one line, as Python would write it."""
    schema = tool.input_schema
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or ()
    shown = []
    more = tool.prepare is not None or bool(schema.get("additionalProperties"))
    for name, field in sorted(properties.items(), key=lambda item: item[0] not in required):
        if not name.isidentifier() or keyword.iskeyword(name):
            more = True  # it can be given, by `**{...}`
            continue
        shown.append(f"{name}: {_annotation(field)}")
        if name not in required:
            shown[-1] += f" = {_default(field)}"
    if shown:
        shown.insert(0, "*")
    if more:
        shown.append("**arguments")
    return f"{tool.name}({', '.join(shown)})"


def expression_of(tool: Tool[Any]) -> str:
    """As code writes a call of it: `tools.save(*, text: str)`."""
    line = signature_of(tool)
    if tool.name.isidentifier() and not keyword.iskeyword(tool.name) and tool.name[0] != "_":
        return f"tools.{line}"
    return f"tools[{tool.name!r}]{line.removeprefix(tool.name)}"


def _default(field: Mapping[str, Any]) -> str:
    text = repr(field["default"]) if "default" in field else "..."
    return text if len(text) <= MAX_DEFAULT else "..."


def _annotation(field: Mapping[str, Any], depth: int = 0) -> str:
    if depth > MAX_NESTED:
        return "Any"
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2] or "Any"
    if "enum" in field:
        return f"Literal[{', '.join(map(repr, field['enum'][:20]))}]"
    choices = field.get("anyOf") or field.get("oneOf")
    if choices:
        return " | ".join(dict.fromkeys(_annotation(one, depth + 1) for one in choices))
    kind = field.get("type")
    if kind == "array" and isinstance(field.get("items"), dict):
        return f"list[{_annotation(field['items'], depth + 1)}]"
    return _TYPES.get(str(kind), "Any")
