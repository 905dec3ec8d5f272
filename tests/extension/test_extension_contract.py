"""`Extension` and `Secret`: what an author may construct."""

from __future__ import annotations

import ast
import copy
import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension, Quoted, Secret
from replsvc.extension.secret import redact, secrets_in

HOSTILE = [
    '"""+__import__("os").system("x")+"""',
    "'''\n{braces} %s ${x}\n'''",
    "quo\"te's",
    "\u202eright to left\u200b",
    "x" * 200,
    "名前 🦀",
]


def issues_of(**fields: Any) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        Extension(**fields)
    return list(caught.value.issues)


def test_an_extension_needs_code_or_description() -> None:
    assert issues_of() == [
        "Extension: an Extension needs code, a description, tools, setup, hooks or dependencies"
    ]
    assert issues_of(name="x") == [
        "Extension 'x': an Extension needs code, a description, tools, setup, hooks or dependencies"
    ]


@pytest.mark.parametrize("fields", [{"code": ""}, {"description": ""}])
def test_an_empty_string_counts_as_given(fields: dict[str, str]) -> None:
    assert Extension(**fields)


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        Path("x.py"),
        ast.parse("x = 1"),
        ast.parse("x = 1").body,
        Quoted(source="def f(): x = 1", file="f.py", first_line=1, body_of="f"),
    ],
    ids=lambda code: type(code).__name__,
)
def test_code_takes_every_form_of_setup_code(code: Any) -> None:
    assert Extension(code=code).code is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"code": b"x"}, "code must be what `quote` returns"),
        ({"code": 3}, "a Path or a str, not int"),
        ({"code": print}, "(wrap the function in `quote`)"),
        ({"code": ["x = 1"]}, "code is a list whose item 0 is str, not an ast.stmt"),
        ({"description": ["x"]}, "description must be a str, not list"),
        ({"description": "a\n\ud800"}, "description contains a lone surrogate in line 2"),
        ({"code": "", "name": 3}, "name must be a str, not int"),
        ({"code": "", "name": " "}, "name must not be empty"),
        ({"code": "", "name": "x" * 201}, "name must be at most 200 characters, not 201"),
        ({"code": "", "name": "a\nb"}, "name must not contain '\\n'"),
        ({"code": "", "name": "a\u2028b"}, "name must not contain '\\u2028'"),
        ({"code": "", "name": "\ud800"}, "name must not contain '\\ud800'"),
        ({"code": "", "requires": "httpx"}, "requires must be a sequence of str, not str"),
        ({"code": "", "requires": ["httpx", ""]}, "requires must hold non-empty str, but item 1"),
        ({"code": "", "network": [3]}, "network must hold non-empty str, but item 0 is 3"),
        ({"code": "", "network": {"a"}}, "network must be a sequence of str, not set"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    (issue,) = issues_of(**fields)
    assert says in issue


def test_all_wrong_fields_are_reported_together() -> None:
    issues = issues_of(code=1, description=2, name="", requires=3, network=4)
    assert [issue.split(": ", 1)[1].split()[0] for issue in issues] == [
        "code",
        "description",
        "name",
        "requires",
        "network",
    ]


def test_fields_go_by_keyword_only() -> None:
    with pytest.raises(TypeError):
        Extension("x = 1")  # type: ignore[misc]


@pytest.mark.parametrize("field", ["commands"])
def test_the_fields_of_later_forms_are_not_taken_in_silence(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        Extension(code="", **{field: []})  # type: ignore[arg-type]


def test_an_extension_is_frozen_and_keeps_copies() -> None:
    requires, statements = ["httpx>=0.27"], ast.parse("x = 1").body
    extension = Extension(code=statements, requires=requires)
    requires.append("numpy")
    statements.clear()
    assert extension.requires == ("httpx>=0.27",)
    assert isinstance(extension.code, ast.Module)
    assert len(extension.code.body) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        extension.code = ""  # type: ignore[misc]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_data(text: str) -> None:
    assert Extension(description=text).description == text
    if "\n" not in text:
        assert Extension(code="", name=text).name == text


def test_a_secret_is_not_shown_by_any_usual_way() -> None:
    secret = Secret("hunter2")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>10}", "%s" % secret, repr([secret])]  # noqa: UP031
    assert not any("hunter2" in text for text in shown)
    assert secret.reveal() == "hunter2"
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        "Bearer " + secret  # type: ignore[operator]


def test_a_secret_is_a_value() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("a")
    assert not Secret("")
    assert copy.deepcopy({"k": Secret("a")}) == {"k": Secret("a")}
    with pytest.raises(AttributeError):
        Secret("a")._text = "b"
    with pytest.raises(TypeError, match="Secret takes a str, not int"):
        Secret(3)  # type: ignore[arg-type]


def test_secrets_are_found_in_containers_once_and_in_order() -> None:
    cycle: list[Any] = [Secret("c")]
    cycle.append(cycle)
    value = {"a": [Secret("a"), ("x", {Secret("b")})], Secret("k"): cycle, "e": Secret("")}
    assert secrets_in(value, Secret("a"), Secret("z")) == ("a", "b", "k", "c", "z")


def test_redacting_leaves_out_what_can_not_be_redacted() -> None:
    assert redact("hunter2 no", ["hunter2", "no", ""]) == "[redacted] no"
