"""The tool's description: true to the facts, bounded, fragments in order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsvc.extension.describe import BaseFacts, compose

PACKAGES = tuple(
    (name, "12.34.56")
    for name in [
        "numpy",
        "pandas",
        "matplotlib",
        "scikit-learn",
        "scipy",
        "httpx",
        "pydantic",
        "requests",
        "pyarrow",
        "polars",
        "pillow",
        "sqlalchemy",
        "beautifulsoup4",
        "lxml",
        "openpyxl",
        "statsmodels",
        "seaborn",
        "plotly",
        "altair",
        "networkx",
        "sympy",
    ]
)
FULL = BaseFacts(
    version="3.11.7",
    timeout_s=120.0,
    max_output_bytes=50_000,
    max_output_lines=2_000,
    network=("api.example", "files.example"),
    isolation="none",
    packages=PACKAGES,
    workspace="The working directory is writable and kept until the session ends.",
)


def changed(**facts: Any) -> str:
    return compose(dataclasses.replace(FULL, **facts))


def test_the_base_says_when_what_and_how_with_an_example() -> None:
    text = compose(FULL)
    for part in (
        "Python 3.11.7",
        "Use it to",
        "persist between calls",
        "=> value",
        "The user does not see",
        "Example:",
        "Notes:",
        FULL.workspace,
    ):
        assert part in text


def test_the_example_shows_what_the_tool_really_returns() -> None:
    import contextlib
    import io

    block = compose(FULL).split("Example:\n")[1].split("\n\n")[0]
    code, _, result = block.partition("\nreturns\n")
    *statements, last = [line.removeprefix("    ") for line in code.split("\n")]
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(statements), namespace)
        value = eval(last, namespace)
    shown = [line.removeprefix("    ") for line in result.split("\n")]
    assert shown == [*printed.getvalue().splitlines(), f"=> {value!r}"]


def test_the_base_text_stays_within_its_budget() -> None:
    hosts = tuple(f"host{number}.example" for number in range(1_000))
    packages = tuple((f"package{number}", "1.0") for number in range(1_000))
    for lifetime in ("session", "call"):
        for facts in ({}, {"network": hosts, "packages": packages}):
            assert len(changed(lifetime=lifetime, **facts)) < 1_700


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("timeout_s", "120 s"),
        ("max_output_bytes", "50,000 bytes"),
        ("max_output_lines", "2,000 lines"),
    ],
)
def test_a_limit_is_said_when_it_is_in_force_and_only_then(field: str, shown: str) -> None:
    assert shown in compose(FULL)
    assert shown not in changed(**{field: None})
    assert "None" not in changed(**{field: None})


def test_without_any_limit_nothing_speaks_of_one() -> None:
    text = changed(timeout_s=None, max_output_bytes=None, max_output_lines=None)
    assert "interrupted" not in text
    assert "shortened" not in text


def test_the_values_of_limits_are_those_of_the_facts() -> None:
    text = changed(timeout_s=0.5, max_output_bytes=1_234, max_output_lines=None)
    assert "0.5 s" in text
    assert "over 1,234 bytes is shortened" in text


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (True, "Network: available."),
        (False, "Network: none."),
        ((), "Network: none."),
        (("a.example", "b.example"), "Network: only a.example, b.example."),
    ],
)
def test_the_network_is_what_it_is(network: Any, says: str) -> None:
    assert says in changed(network=network)


def test_a_fresh_kernel_each_call_promises_nothing_that_persists() -> None:
    text = changed(lifetime="call", workspace="")
    assert "starts afresh" in text
    assert "persist" not in text
    assert "names still hold" not in text


def test_only_a_kernel_without_isolation_warns() -> None:
    assert "not isolated" in changed(isolation="none")
    assert "not isolated" not in changed(isolation="namespaces")


def test_packages_are_listed_until_the_budget_and_the_rest_counted() -> None:
    few = changed(packages=(("numpy", "2.1"), ("local", "")))
    assert "Importable: numpy 2.1, local." in few
    text = changed(packages=tuple((f"package{number:03}", "1.0") for number in range(500)))
    listed = text.split("Importable: ")[1].split(".\n")[0]
    names, _, more = listed.rpartition(" and ")
    assert len(names.split(", ")) + int(more.removesuffix(" more")) == 500
    assert "Importable" not in changed(packages=())


def test_another_language_is_not_described_as_python() -> None:
    text = changed(language="bash", version="5.2")
    assert "Runs bash 5.2 code" in text
    assert "Python" not in text
    assert "Example" not in text
    assert "await" not in text


def test_fragments_follow_in_order_after_blank_lines_and_blank_ones_are_left_out() -> None:
    base = compose(FULL)
    assert compose(FULL, ["- one", "", " \n", "two\n\nlines", "\nthree\n"]) == (
        f"{base}\n\n- one\n\ntwo\n\nlines\n\nthree"
    )


@given(fragment=st.text())
def test_any_fragment_stays_as_it_is(fragment: str) -> None:
    base = compose(FULL)
    inner = fragment.strip("\n")
    assert compose(FULL, [fragment]) == (f"{base}\n\n{inner}" if inner.strip() else base)


@pytest.mark.parametrize(
    "fragment",
    ['"""+__import__("os").system("x")+"""', "{timeout_s} {0} %s $x", "'''\\n\\", "# Notes:\n- no"],
)
def test_a_hostile_fragment_stays_data(fragment: str) -> None:
    assert compose(FULL, [fragment, "after"]) == f"{compose(FULL)}\n\n{fragment}\n\nafter"
