"""`tools`: the session's tools as functions of the user's code, with signature and help.

Names, descriptions and schemas are data: nothing of them is ever compiled or evaluated.
"""

from __future__ import annotations

import difflib
import inspect
import json
import keyword
import re
from typing import Any, Callable, Iterator, NamedTuple

MAX_ARGUMENT_BYTES = 8 * 1024 * 1024
MAX_VALUES = 100_000
# Under what our host takes from a kernel, which it would end for more.
MAX_DEPTH = 48
MAX_LISTED = 200

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# More digits than Python reads as a number.
_HUGE = re.compile(rb"\d{4300}")
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}


class ToolError(Exception):
    """Raised where a tool failed, or was refused: `tool`, `message`, and `type`, the error's name.

    As a name of the builtins it is at hand wherever `tools` is.
    """

    def __init__(self, tool: str, message: str, type: str = "ToolError") -> None:  # noqa: A002
        super().__init__(f"{tool}: {message}")
        self.tool, self.message, self.type = tool, message, type

    def __reduce__(self) -> Any:
        """Other processes see the same."""
        return ToolError, (self.tool, self.message, self.type)


ToolError.__module__ = "builtins"


class Offer(NamedTuple):
    """One tool, as the host tells of it. `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    signature: str

    @property
    def line(self) -> str:
        """Name and signature, in one line."""
        return self.signature or f"{self.name}{signature(self.parameters)}"


class _Shown:
    """An annotation, or the default of what may be left out: it is there to be read."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


LEFT_OUT = _Shown("...")


def signature(schema: dict[str, Any]) -> inspect.Signature:
    """What a JSON Schema asks for, as keyword-only parameters; `...` for what may be left out."""
    properties = _object(schema.get("properties"))
    required = schema.get("required") or []
    found = []
    more = not _is_closed(schema)
    for name, field in sorted(properties.items(), key=lambda item: item[0] not in required):
        if not name.isidentifier() or keyword.iskeyword(name) or name == "arguments":
            more = True  # it can be given, by `**{...}`
            continue
        field = _object(field)  # noqa: PLW2901 - the same, whatever was sent
        default: Any = inspect.Parameter.empty
        if name not in required:
            default = field.get("default", LEFT_OUT)
        annotation: Any = _Shown(_annotation(field))
        found.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    if more:
        found.append(inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(found)


def _is_closed(schema: dict[str, Any]) -> bool:
    """Whether only the properties that are named may be given."""
    return isinstance(schema.get("properties"), dict) and not (
        schema.get("additionalProperties") or schema.get("patternProperties")
    )


def _annotation(schema: dict[str, Any], depth: int = 0) -> str:
    if depth > 4:
        return "Any"
    if isinstance(schema.get("$ref"), str):
        return " ".join(schema["$ref"].rpartition("/")[2].split()) or "Any"
    if isinstance(schema.get("enum"), list):
        return f"Literal[{', '.join(map(repr, schema['enum'][:20]))}]"
    kinds = schema.get("type")
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        return " | ".join(dict.fromkeys(_annotation(_object(one), depth + 1) for one in choices))
    if isinstance(kinds, list):
        return " | ".join(_TYPES.get(str(kind), "Any") for kind in kinds)
    if kinds == "array" and isinstance(schema.get("items"), dict):
        return f"list[{_annotation(schema['items'], depth + 1)}]"
    return _TYPES.get(str(kinds), "Any")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def pack(offer: Offer, given: tuple[Any, ...], arguments: dict[str, Any]) -> bytes:
    """The arguments as JSON. Raises `TypeError` for what the tool does not take, and does nothing.

    Types of values are the host's to check: it knows what it can convert.
    """
    called = f"tools.{offer.name}()"
    properties = _object(offer.parameters.get("properties"))
    known = ", ".join(properties) or "none"
    if given:
        raise TypeError(f"{called} takes its arguments by keyword: {known}")
    if _is_closed(offer.parameters):
        for name in arguments:
            if name not in properties:
                near = difflib.get_close_matches(name, properties, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; it takes: {known}"
                raise TypeError(f"{called} got an unexpected keyword argument {name!r}{hint}")
    missing = [name for name in offer.parameters.get("required") or [] if name not in arguments]
    if missing:
        raise TypeError(f"{called} is missing: {', '.join(map(repr, missing))}")
    packed = [
        json.dumps(name).encode() + b":" + _plain(called, name, value)
        for name, value in arguments.items()
    ]
    whole = b"{" + b",".join(packed) + b"}"
    if len(whole) > MAX_ARGUMENT_BYTES:
        raise TypeError(
            f"{called} was given arguments of {len(whole) / 1e6:.1f} MB; "
            f"at most {MAX_ARGUMENT_BYTES / 1e6:.1f} MB can be sent. Put them into a file"
        )
    return whole


def _plain(called: str, name: str, value: Any) -> bytes:
    def bad(why: object) -> TypeError:
        return TypeError(f"{called}: {name!r} is no plain data: {why}")

    try:
        packed = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise bad("it holds half of a surrogate pair, which is no text") from None
    except RecursionError:
        raise bad("it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise bad(error) from None
    opened = packed.count(b"{") + packed.count(b"[")
    if opened > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise bad(f"it is nested over {MAX_DEPTH} deep")
    if opened + packed.count(b",") > MAX_VALUES or _HUGE.search(packed):
        bare = _STRINGS.sub(b"", packed)
        if bare.count(b"{") + bare.count(b"[") + bare.count(b",") > MAX_VALUES:
            raise bad(f"it holds over {MAX_VALUES} values; put them into a file")
        if _HUGE.search(bare):
            raise bad("it holds a number of too many digits")
    return packed


def _depth(value: Any) -> int:
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list, tuple))
        ]
        depth += 1
    return depth


Call = Callable[[str, tuple[Any, ...], "dict[str, Any]"], Any]


def function(offer: Offer, call: Call, awaited: Call) -> Any:
    """One tool as a function: it waits for the result; its attribute `call` is for `await`."""
    name = offer.name

    def tool(*given: Any, **arguments: Any) -> Any:
        return call(name, given, arguments)

    def tool_call(*given: Any, **arguments: Any) -> Any:
        return awaited(name, given, arguments)

    text = _documentation(offer)
    for made, shown in ((tool, name), (tool_call, f"{name}.call")):
        made.__name__, made.__qualname__, made.__module__ = shown, f"tools.{shown}", "tools"
        made.__doc__ = text
        made.__signature__ = signature(offer.parameters)  # type: ignore[attr-defined]
    tool.call = tool_call  # type: ignore[attr-defined]
    return tool


def _documentation(offer: Offer) -> str:
    lines = [offer.description.strip() or "A tool of this session."]
    about = []
    for name, field in _object(offer.parameters.get("properties")).items():
        field = _object(field)  # noqa: PLW2901 - the same, whatever was sent
        if isinstance(field.get("description"), str):
            about.append(f"- {name}: {field['description'].strip()}")
    if about:
        lines.append("\n".join(about))
    shown = _expression(offer.name)
    lines.append(
        f"Waits for the result; `await {shown}.call(...)` lets others run meanwhile. "
        "Raises ToolError where it fails or is refused."
    )
    return "\n\n".join(lines)


def _expression(name: str) -> str:
    return f"tools.{name}" if _is_attribute(name) else f"tools[{name!r}]"


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


class Tools:
    """The tools that this session offers: `tools.NAME(...)`, or `tools["NAME"](...)`.

    `dir(tools)` lists them, `help(tools.NAME)` describes one.
    """

    __slots__ = ("__find", "__offers")

    def __init__(self, find: Callable[[str], Any], offers: Callable[[], dict[str, Offer]]) -> None:
        self.__find, self.__offers = find, offers

    def __getattr__(self, name: str) -> Any:
        """Names that begin with an underscore are Python's here: these go by `tools[...]`."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __getitem__(self, name: str) -> Any:
        """The tool called `name`, whatever its name is."""
        offers = self.__offers()
        if name in offers:
            return self.__find(name)
        if not offers:
            raise KeyError("this session has no tools for its code")
        near = difflib.get_close_matches(str(name), offers, 1)
        hint = f"did you mean {near[0]!r}?" if near else "dir(tools) lists those there are"
        raise KeyError(f"there is no tool {name!r}; {hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.__offers()))

    def __contains__(self, name: object) -> bool:
        return name in self.__offers()

    def __len__(self) -> int:
        return len(self.__offers())

    def __bool__(self) -> bool:
        return bool(self.__offers())

    def __dir__(self) -> list[str]:
        return sorted(self.__offers())

    def __repr__(self) -> str:
        offers = sorted(self.__offers().values())
        if not offers:
            return "<tools: none>"
        lines = [" ".join(offer.line.split()) for offer in offers[:MAX_LISTED]]
        if len(offers) > MAX_LISTED:
            lines.append(f"and {len(offers) - MAX_LISTED} more: see dir(tools)")
        return "<tools:\n  " + "\n  ".join(lines) + ">"


Tools.__module__ = "builtins"
