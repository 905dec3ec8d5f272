"""extensions.md rule 14: a tool's definition, its input from the handler, its schema."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension
from replsvc.extension.resolve import resolve
from replsvc.extension.tools import ToolContext, tool


class Note(BaseModel):
    text: str


class Tree(BaseModel):
    name: str
    parts: list[Tree] = []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def issues_of(handler: Any, **fields: Any) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        tool(handler=handler, **{"description": "d", "name": "t", **fields})
    return list(caught.value.issues)


def test_parameters_are_the_fields_of_the_input() -> None:
    def find(text: str, limit: Annotated[int, Field(ge=1)] = 5) -> str:
        """Finds text."""
        return text * limit

    made = tool(find)
    assert made.name == "find"
    assert made.description == "Finds text."
    assert made.input_schema == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "default": 5},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def test_a_single_model_is_the_input_itself() -> None:
    def save(note: Note, ctx: ToolContext) -> str:
        """Saves."""
        return ctx.call_id + note.text

    made = tool(save)
    assert made.shape.model is Note
    assert made.shape.context == "ctx"
    assert list(made.input_schema["properties"]) == ["text"]


def test_a_model_beside_another_parameter_is_one_of_the_fields() -> None:
    def save(note: Note, loud: bool) -> str:
        """Saves."""
        return note.text if loud else ""

    assert list(tool(save).input_schema["properties"]) == ["note", "loud"]


@pytest.mark.parametrize("name", ["schema", "copy", "json", "model_dump", "self_"])
def test_a_parameter_may_have_a_name_that_pydantic_keeps_for_itself(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({name}: int): return {name}", scope)
    made = tool(handler=scope["f"], description="d")
    assert list(made.input_schema["properties"]) == [name]
    value = made.shape.model.model_validate({name: 3})
    assert made.shape.arguments(value, None) == {name: 3}  # type: ignore[arg-type]


def test_a_schema_has_no_references_titles_or_constants() -> None:
    def f(note: Note, colour: Colour, one: Literal["x"], title: str = "t") -> None: ...

    schema = tool(handler=f, description="d").input_schema
    assert "$" not in str(schema)
    assert schema["properties"] == {
        "note": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "one": {"type": "string", "enum": ["x"]},
        "title": {"type": "string", "default": "t"},
    }


def test_a_type_that_contains_itself_keeps_its_reference() -> None:
    def f(tree: Tree) -> None: ...

    schema = tool(handler=f, description="d").input_schema
    assert schema["type"] == "object"
    assert schema["$defs"]["Tree"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Tree"}


def test_guidelines_join_the_description() -> None:
    made = tool(handler=lambda: None, name="t", description="Does.", guidelines=["Once."])
    assert made.full_description() == "Does.\n- Once."


async def _generates(ctx: ToolContext) -> Any:
    yield ctx


def _untyped(x):  # type: ignore[no-untyped-def]
    return x


def _two(a: ToolContext, b: ToolContext) -> None: ...


def _starred(*args: int) -> None: ...


def _unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _object(x: object()) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("handler", "fields", "says"),
    [
        (3, {}, "handler must be callable, not 3"),
        (_generates, {}, "handler is a generator"),
        (_untyped, {}, "parameter x has no type; annotate it"),
        (_two, {}, "parameters a and b both take the context"),
        (_starred, {}, "parameter args must be one that is given by its name"),
        (_unknown, {}, "annotations can't be read: NameError: name 'Nowhere' is not defined"),
        (_object, {}, "no input can be made of the handler's parameters"),
        (_two, {"input": Note}, "parameters a and b both take the context"),
        (lambda: None, {"input": Note}, "the handler takes it as one parameter"),
        (lambda: None, {"input": dict}, "input must be a pydantic model"),
        (lambda: None, {"output": dict}, "output must be a pydantic model"),
        (lambda: None, {"execution": "later"}, "execution must be one of parallel, sequential"),
        (lambda: None, {"timeout_s": 0}, "timeout_s must be above 0"),
        (lambda: None, {"timeout_s": True}, "timeout_s must be a number of seconds or None"),
        (lambda: None, {"guidelines": "one"}, "guidelines must be a sequence of str"),
        (lambda: None, {"prepare": 1}, "prepare must be callable"),
        (lambda: None, {"description": None}, "description is missing"),
        (lambda: None, {"name": "a b"}, "must be 1 to 64 ASCII letters"),
        (lambda: None, {"name": '"""+x+"""'}, "must be 1 to 64 ASCII letters"),
        (lambda: None, {"name": "{x}\n"}, "must be 1 to 64 ASCII letters"),
    ],
)
def test_a_wrong_tool_is_refused_with_the_field(
    handler: Any, fields: dict[str, Any], says: str
) -> None:
    (issue,) = issues_of(handler, **fields)
    assert says in issue


def test_all_issues_of_a_tool_come_at_once_with_file_and_line() -> None:
    issues = issues_of(_untyped, description="", timeout_s=-1)
    line = _untyped.__code__.co_firstlineno
    assert [issue.split(": ", 1)[0] for issue in issues] == [f"tool 't' ({__file__}:{line})"] * 3


def test_approval_is_not_taken_in_silence() -> None:
    with pytest.raises(TypeError, match="needs_approval"):
        tool(handler=lambda: None, name="t", description="d", needs_approval=True)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([lambda: None], "make it a tool: `tool(handler=...)`"),
        ("tool", "tools must be a sequence of what `tool` makes, not str"),
        ([tool(handler=lambda: 1, name="t", description="d")] * 2, "2 that are named 't'"),
    ],
)
def test_an_extension_takes_tools_only(tools: Any, says: str) -> None:
    with pytest.raises(ExtensionError) as caught:
        Extension(name="x", tools=tools)
    assert says in caught.value.issues[0]
    assert caught.value.issues[0].startswith("Extension 'x': tools ")


def test_a_name_that_two_extensions_give_a_tool_is_an_issue_naming_both() -> None:
    one = tool(handler=lambda: 1, name="t", description="d")
    built_in = tool(handler=lambda: 1, name="repl", description="d")
    with pytest.raises(ExtensionError) as caught:
        resolve([Extension(name="a", tools=[one, built_in]), Extension(name="b", tools=[one])])
    assert caught.value.issues == (
        "extensions 'a' and 'b' both have a tool 't'; name one of them otherwise",
        "extension 'a' has a tool 'repl', which is built in; name it otherwise",
    )


# Options


class Options(BaseModel):
    key: str
    limit: int = 3


def test_opts_are_checked_by_the_model_and_reach_code_and_description() -> None:
    weather = Extension(
        name="weather",
        options=Options,
        code=lambda o: f"limit = {o.limit}",
        description=lambda o: f"at most {o.limit}",
    )
    (found,) = resolve([(weather, {"key": "k", "limit": "4"})])
    assert found.setup is not None
    assert found.setup.source == "limit = 4"
    assert found.description == "at most 4"
    assert found.options == Options(key="k", limit=4)


def test_wrong_opts_are_issues_that_name_the_field_and_never_the_value() -> None:
    weather = Extension(name="weather", options=Options, code="")
    with pytest.raises(ExtensionError) as caught:
        resolve([(weather, {"limit": "secret"})])
    assert caught.value.issues == (
        "extensions[0] (weather): opts.key: Field required",
        "extensions[0] (weather): opts.limit: Input should be a valid integer, unable to parse "
        "string as an integer",
    )


def test_a_callable_description_that_raises_is_an_issue() -> None:
    weather = Extension(name="weather", options=Options, description=lambda o: o.nothing)
    with pytest.raises(ExtensionError, match=r"description\(opts\) raised AttributeError"):
        resolve([(weather, {"key": "k"})])
