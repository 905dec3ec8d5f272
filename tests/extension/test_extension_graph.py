"""extensions.md rules 20, 21, 25 and 26: dependencies, their order, and services."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension, tool
from replsvc.extension.resolve import resolve


def named(name: str | None, *dependencies: object, **fields: Any) -> Extension:
    return Extension(name=name, description="d", dependencies=dependencies, **fields)


def names(*listed: object) -> list[str]:
    return [extension.name for extension in resolve(listed)]


def issues(*listed: object) -> tuple[str, ...]:
    with pytest.raises(ExtensionError) as caught:
        resolve(listed)
    return caught.value.issues


class Module:
    """A module-based extension, which may come to depend on others."""

    def __init__(self, *dependencies: object) -> None:
        self.dependencies = list(dependencies)

    def code(self, opts: Any) -> str:
        return ""

    def description(self, opts: Any) -> str:
        return ""


class A(Module): ...


class B(Module): ...


class C(Module): ...


def test_dependencies_come_first_each_once_in_the_order_of_declaration() -> None:
    base = named("base")
    left, right = named("left", base), named("right", base)
    top = named("top", right, left)
    assert names(top, left, named("other")) == ["base", "right", "left", "top", "other"]
    assert names(left, top) == ["base", "left", "right", "top"]
    (_, _, resolved, _) = resolve([left, top])
    assert resolved.dependencies == ("base",)
    assert resolve([top])[-1].dependencies == ("right", "left")


def test_an_identity_is_an_object_with_its_opts() -> None:
    module = Module()
    listed = named("x", (module, {"a": 1}), (module, {"a": 1}), (module, {"a": 2}), module)
    assert names(listed) == ["Module", "Module#2", "Module#3", "x"]


def test_dependencies_without_a_name_are_called_after_their_place() -> None:
    assert names(named("x"), named(None, named(None), named(None))) == [
        "x",
        "inline[1]",
        "inline[1]#2",
        "inline[1]#3",
    ]


def test_a_chain_of_ten_thousand_does_not_overflow() -> None:
    chain = named("0")
    for n in range(1, 10_000):
        chain = named(str(n), chain)
    assert len(repr(chain)) < 1_000
    assert hash(chain) == hash(chain)
    found = names(chain)
    assert found == [str(n) for n in range(10_000)]


def test_a_name_of_two_extensions_is_an_issue_once_a_name() -> None:
    assert issues(named("x", named("y")), named("x"), named("y")) == (
        "a dependency of x, extensions[2] are all named 'y'; give each a name of its own",
        "extensions[0], extensions[1] are all named 'x'; give each a name of its own",
    )


def test_a_circle_is_shown_as_its_path_once() -> None:
    a, b, c = A(), B(), C()
    a.dependencies, b.dependencies, c.dependencies = [b], [c, c], [a]
    assert issues(named("x", a, b), c) == (
        "extensions depend on each other in a circle: A -> B -> C -> A",
    )
    a.dependencies = [a]
    assert issues(a) == ("extensions depend on each other in a circle: A -> A",)


def test_all_issues_are_reported_together_and_say_whose_they_are() -> None:
    a, b = A(), B()
    a.dependencies, b.dependencies = [b], [7, a]
    assert issues(named("x", (named("y"), {"k": 1})), a) == (
        "a dependency of x: an Extension without `options` takes no opts; list it bare",
        "a dependency of B: 7 is no extension; list an Extension, or an object with "
        "code(opts) and description(opts), bare or as (object, opts)",
        "extensions depend on each other in a circle: A -> B -> A",
    )


@pytest.mark.parametrize("dependencies", [7, "abc"])
def test_dependencies_that_are_no_sequence_are_an_issue(dependencies: Any) -> None:
    with pytest.raises(ExtensionError, match="dependencies must be a sequence of extensions"):
        Extension(name="x", description="", dependencies=dependencies)
    a = A()
    a.dependencies = dependencies
    assert issues(a)[0].endswith(f"its dependencies must be a sequence, not {dependencies!r}")


class Counter: ...


class Unchecked(Protocol): ...


def needs(*kinds: type) -> Any:
    return tool(name="t", description="d", handler=lambda: None, services=kinds)


def counter(name: str = "counter", *dependencies: object) -> Extension:
    return named(name, *dependencies, setup=lambda ctx: Counter(), provides=[Counter])


def test_a_service_comes_from_oneself_or_a_direct_dependency() -> None:
    resolve([named("x", counter(), tools=[needs(Counter)])])
    own = Extension(setup=lambda ctx: Counter(), provides=[Counter], tools=[needs(Counter)])
    resolve([own])
    far = named("x", named("between", counter()), tools=[needs(Counter)])
    assert issues(far) == (
        "extension 'x': tool 't' needs the service Counter, which neither it nor a direct "
        "dependency provides; add the extension that does to its `dependencies`",
    )
    assert (
        "'a' and 'b' both provide"
        in issues(named("x", counter("a"), counter("b"), tools=[needs(Counter)]))[0]
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"dispose": list.clear}, "dispose is given without setup"),
        ({"provides": [Counter]}, "provides is given without setup"),
        ({"setup": 7}, "setup must be callable, not 7"),
        ({"setup": lambda ctx: (yield)}, "setup is a generator; make it async"),
        ({"setup": list, "provides": [7]}, "provides must hold classes, but item 0 is 7"),
        ({"setup": list, "provides": Counter}, "provides must be a sequence of classes"),
        ({"setup": list, "provides": [Unchecked]}, "make Unchecked runtime_checkable"),
    ],
)
def test_a_resource_that_can_not_be_is_refused_where_it_is_written(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ExtensionError, match=problem):
        Extension(description="", **fields)


def test_services_of_a_tool_must_be_classes() -> None:
    with pytest.raises(ExtensionError, match="services must hold classes, but item 0 is 'x'"):
        needs("x")  # type: ignore[arg-type]
