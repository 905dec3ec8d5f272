from __future__ import annotations

import pytest

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension
from replsvc.extension.needs import Surroundings, unmet
from replsvc.extension.resolve import resolve

HERE = Surroundings("/opt/py", "3.11.4", {"Some_Package": "2.0rc1", "odd": "not a version"})


@pytest.mark.parametrize(
    "requirement",
    [
        "some-package",
        "SOME.package >= 1.9, < 2.1",
        "some_package[extra]",
        "absent; python_version < '3.11'",
        "odd",
    ],
)
def test_what_is_there_is_no_problem(requirement: str) -> None:
    assert unmet([requirement], [], HERE) == []


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("absent>=1", "requires absent>=1, and /opt/py has no absent"),
        ("some-package>=2.0", "requires some-package>=2.0, and /opt/py has 2.0rc1"),
        ("absent; python_version >= '3.11'", "/opt/py has no absent"),
        ("odd>=1", "/opt/py has not a version"),
        ("a b", "requires 'a b', which is no requirement; write it like 'httpx>=0.27'"),
    ],
)
def test_what_is_missing_says_what_is_wanted_and_what_there_is(requirement: str, said: str) -> None:
    (problem,) = unmet([requirement], [], HERE)
    assert said in problem


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (True, []),
        (False, ["needs the network to reach api.example; this session reaches no host"]),
        (("api.example", "other"), []),
        (("other",), ["needs the network to reach api.example; this session reaches other"]),
    ],
)
def test_hosts_must_be_reachable(network: bool | tuple[str, ...], said: list[str]) -> None:
    surroundings = Surroundings("/opt/py", "3.11.4", network=network)
    assert unmet([], ["api.example"], surroundings) == said


def test_needs_are_issues_among_the_others_in_the_order_of_the_list() -> None:
    listed = [
        Extension(code="a = 1", name="first", requires=["absent", "some-package"]),
        42,
        Extension(description="", requires=["also-absent"]),
    ]
    with pytest.raises(ExtensionError) as caught:
        resolve(listed, HERE)
    assert [issue.partition(":")[0] for issue in caught.value.issues] == [
        "extensions[0] (first)",
        "extensions[1]",
        "extensions[2] (inline[2])",
    ]
    assert "absent" in caught.value.issues[0]
