"""What a request may choose by name, and what it may write inline."""

from __future__ import annotations

from typing import Any

import pytest
import sample_weather

from replsvc.errors import ExtensionError
from replsvc.extension.available import Available, select
from replsvc.extension.contract import Extension
from replsvc.extension.resolve import resolve

HOSTILE = '"""+__import__("os").system("x")+"""'


@pytest.fixture
def available() -> Available:
    return Available(['sample_weather:Weather={"units": "C", "key": "k"}', "sample_weather:ping"])


def issues_of(available: Available, *items: object) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        select(available, items)
    return list(caught.value.issues)


def test_public_names_are_those_of_extensions_objects_and_files() -> None:
    available = Available(
        ["sample_weather:named", "sample_weather:Weather", sample_weather.__file__]
    )
    assert list(available) == ["announcer", "Weather", "sample_weather"]
    assert len(available) == 3
    assert "ping" not in available


def test_two_of_one_name_are_an_issue_beside_others() -> None:
    with pytest.raises(ExtensionError) as caught:
        Available(["sample_weather:ping", "sample_weather:ping"])
    assert caught.value.issues == (
        "extensions[1]: another extension is called 'ping' too; "
        "requests could not tell them apart, so name one of them otherwise",
    )


def test_an_extension_is_chosen_by_name_with_its_configured_opts_as_defaults(
    available: Available,
) -> None:
    assert select(
        available, [{"name": "Weather"}, {"name": "Weather", "opts": {"units": "F"}}]
    ) == [
        (sample_weather.Weather, {"units": "C", "key": "k"}),
        (sample_weather.Weather, {"units": "F", "key": "k"}),
    ]


def test_choosing_never_changes_what_is_available(available: Available) -> None:
    select(available, [{"name": "Weather", "opts": {"units": "F", "new": 1}}])
    assert available["Weather"].opts == {"units": "C", "key": "k"}


def test_code_and_description_make_an_inline_extension(available: Available) -> None:
    items = [{"code": HOSTILE, "description": HOSTILE}, {"code": None, "description": ""}]
    assert select(available, items) == [
        Extension(code=HOSTILE, description=HOSTILE),
        Extension(description=""),
    ]


def test_what_is_selected_resolves(available: Available) -> None:
    selected = select(available, [{"name": "ping"}, {"code": ""}, {"name": "Weather"}])
    assert [extension.name for extension in resolve(selected)] == ["ping", "inline[1]", "Weather"]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("Weather", "must be an object with name and opts, or with code and description, not str"),
        (None, "not NoneType"),
        ({}, "an Extension needs code, a description, tools"),
        ({"code": None}, "an Extension needs code, a description, tools"),
        ({"name": "Wether"}, "Did you mean 'Weather'? Available: Weather, ping."),
        ({"name": "sample_weather:named"}, "no extension called 'sample_weather:named' is avail"),
        ({"name": "sample_weather.py"}, "no extension called 'sample_weather.py' is available"),
        ({"name": 3}, "name must be a string"),
        ({"opts": {}}, "name must be a string"),
        ({"name": "Weather", "opts": []}, "opts must be an object, not list"),
        ({"name": "Weather", "opts": None}, "opts must be an object, not NoneType"),
        ({"name": "ping", "opts": {"a": 1}}, "'ping' takes no opts"),
        ({"name": "ping", "code": ""}, "code can't be given with name or opts"),
        ({"code": ["x"]}, "code must be a string, not list"),
        ({"description": 3}, "description must be a string, not int"),
        ({"code": "", "tools": []}, "unknown field 'tools'. Allowed: code and description."),
        ({"name": "ping", "opt": {}}, "unknown field 'opt'. Did you mean 'opts'? Allowed: name"),
        ({"description": "\ud800"}, "description contains a lone surrogate"),
    ],
)
def test_a_wrong_item_says_what_is_wrong(available: Available, item: Any, says: str) -> None:
    (issue,) = issues_of(available, item)
    assert issue.startswith("extensions[0]: ")
    assert says in issue


def test_all_issues_of_all_items_come_in_their_order(available: Available) -> None:
    issues = issues_of(
        available,
        {"name": "nope", "opts": 3, "extra": 1},
        {"name": "ping"},
        {"code": 1, "description": 2},
    )
    assert [issue.split(": ")[0] for issue in issues] == [
        *["extensions[0]"] * 3,
        *["extensions[2]"] * 2,
    ]


def test_nothing_available_is_said_so() -> None:
    (issue,) = issues_of(Available(), {"name": "x"})
    assert issue.endswith("Available: none.")
