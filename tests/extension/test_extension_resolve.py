"""`resolve`: order, names, calls of `code` and `description`, and every issue at once."""

from __future__ import annotations

import ast
import types
from pathlib import Path
from typing import Any

import pytest
import sample_weather

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Extension, Secret
from replsvc.extension.quote import quote
from replsvc.extension.resolve import ResolvedExtension, resolve
from replsvc_kernels.messages import SetupCode


class Given:
    """A module-based extension that returns, or raises, what it was given, and counts calls."""

    def __init__(self, code: Any = "x = 1", description: Any = "x") -> None:
        self.returns = {"code": code, "description": description}
        self.calls: list[tuple[str, Any]] = []

    def _called(self, label: str, opts: Any) -> Any:
        self.calls.append((label, opts))
        result = self.returns[label]
        if isinstance(result, BaseException):
            raise result
        return result

    def code(self, opts: Any) -> Any:
        return self._called("code", opts)

    def description(self, opts: Any) -> Any:
        return self._called("description", opts)


def issues_of(*listed: object) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        resolve(listed)
    return list(caught.value.issues)


def names_of(*listed: object) -> list[str]:
    return [extension.name for extension in resolve(listed)]


def test_an_inline_extension_resolves_to_its_parts() -> None:
    extension = Extension(
        code="x = 1", description="d", name="n", requires=["httpx"], network=["api.example"]
    )
    assert resolve([extension]) == (
        ResolvedExtension(
            name="n",
            setup=SetupCode(name="n", source="x = 1", file="<extension n>"),
            description="d",
            requires=("httpx",),
            network=("api.example",),
        ),
    )


def test_an_extension_may_have_only_one_of_its_parts() -> None:
    only_code, only_description = resolve([Extension(code=""), Extension(description="")])
    assert (only_code.setup is not None, only_code.description) == (True, None)
    assert (only_description.setup, only_description.description) == (None, "")


def test_a_module_a_class_and_an_instance_are_extensions() -> None:
    module, klass, instance = resolve(
        [sample_weather, (sample_weather.Weather, {"a": 1}), sample_weather.instance]
    )
    assert [module.name, klass.name, instance.name] == ["sample_weather", "Weather", "Instance"]
    assert module.setup is not None
    assert module.setup.values == {"units": "'C'"}
    assert module.setup.body_of == "body"
    assert module.setup.file == sample_weather.__file__
    assert klass.setup is not None
    assert klass.setup.source == "opts = {'a': 1}"
    assert klass.description == "Weather"
    assert instance.description is None


def test_both_callables_are_called_once_with_the_same_read_only_opts() -> None:
    extension, opts = Given(), {"a": [1]}
    resolve([(extension, opts)])
    (first, code_opts), (second, description_opts) = extension.calls
    assert {first, second} == {"code", "description"}
    assert code_opts is description_opts
    assert code_opts == opts
    assert code_opts is not opts
    with pytest.raises(TypeError):
        code_opts["b"] = 2


def test_opts_are_empty_when_an_object_is_listed_bare() -> None:
    extension = Given()
    resolve([extension])
    assert extension.calls == [("code", {}), ("description", {})]


def test_what_returns_none_is_absent_but_not_both() -> None:
    (extension,) = resolve([Given(code=None)])
    assert extension.setup is None
    assert issues_of(Given(code=None, description=None)) == [
        "extensions[0] (Given): code(opts) and description(opts) both returned None; give one"
    ]


def test_each_identity_is_resolved_once_where_it_is_listed_first() -> None:
    extension, inline = Given(), Extension(code="")
    listed = [(extension, {"a": 1}), inline, (extension, {"a": 1}), inline, extension]
    assert names_of(*listed) == ["Given", "inline[1]", "Given#2"]
    assert [opts for label, opts in extension.calls if label == "code"] == [{"a": 1}, {}]


def test_opts_that_are_equal_but_of_other_types_make_another_identity() -> None:
    extension = Given()
    assert names_of(*[(extension, {"a": value}) for value in (1, True, 1.0, [1], (1,))]) == [
        "Given",
        *(f"Given#{number}" for number in (2, 3, 4, 5)),
    ]


def test_opts_that_can_not_be_compared_make_another_identity() -> None:
    class Array:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    extension = Given()
    assert len(names_of((extension, {"a": Array()}), (extension, {"a": Array()}))) == 2
    same = Array()
    assert len(names_of((extension, {"a": same}), (extension, {"a": same}))) == 1


def test_equal_inline_extensions_that_are_different_objects_both_count() -> None:
    assert names_of(Extension(code="x"), Extension(code="x")) == ["inline[0]", "inline[1]"]


def test_objects_of_one_class_are_numbered() -> None:
    assert names_of(Given(), Extension(code=""), Given()) == ["Given", "inline[1]", "Given#2"]


def test_a_derived_name_gives_way_to_a_given_one() -> None:
    assert names_of(
        Given(),
        Extension(code="", name="Given"),
        Extension(code="", name="inline[3]"),
        Extension(code=""),
    ) == ["Given#2", "Given", "inline[3]", "inline[3]#2"]


def test_a_class_inside_classes_has_its_qualified_name() -> None:
    class Outer:
        class Inner(sample_weather.Weather):
            pass

    assert names_of(Outer.Inner) == ["Outer.Inner"]


def test_a_name_given_twice_is_one_issue_a_name() -> None:
    def named(name: str) -> Extension:
        return Extension(code="", name=name)

    assert issues_of(named("a"), named("b"), named("a"), named("b"), named("a")) == [
        "extensions[0], extensions[2], extensions[4] are all named 'a'; "
        "give each a name of its own",
        "extensions[1], extensions[3] are all named 'b'; give each a name of its own",
    ]


class OnlyCode:
    @staticmethod
    def code(opts: Any) -> str:
        return ""


class NotCallable:
    code = "x = 1"

    @staticmethod
    def description(opts: Any) -> str:
        return ""


class NeedsInstance:
    def code(self, opts: Any) -> str:
        return ""

    def description(self, opts: Any) -> str:
        return ""


class Property:
    description = NotCallable.description

    @property
    def code(self) -> None:
        raise LookupError("no code today")


class Async:
    @staticmethod
    async def code(opts: Any) -> str:
        return ""

    description = NotCallable.description


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (3, "extensions[0]: 3 is no extension; list an Extension"),
        ("weather", "extensions[0]: 'weather' is no extension"),
        (None, "extensions[0]: None is no extension"),
        (["x"], "extensions[0]: ['x'] is no extension"),
        ((), "extensions[0]: is a tuple of 0; list an object or (object, opts)"),
        ((Given(), {}, 1), "extensions[0]: is a tuple of 3"),
        ((Given(), None), "extensions[0]: opts must be a mapping, not NoneType"),
        ((Given(), {1: 2}), "extensions[0]: opts must have names as keys, not 1"),
        (
            (Extension(code=""), {}),
            "extensions[0]: an Extension without `options` takes no opts; list it bare",
        ),
        (OnlyCode, "extensions[0] (OnlyCode): object OnlyCode has no callable description(opts)"),
        (
            NotCallable(),
            "extensions[0] (NotCallable): object NotCallable has no callable code(opts); "
            "its `code` is 'x = 1'",
        ),
        (
            NeedsInstance,
            "extensions[0] (NeedsInstance): code must be callable as code(opts); "
            "make it a staticmethod, or list an instance",
        ),
        (Property(), "can't give its code: LookupError: no code today"),
        (Async, "extensions[0] (Async): code is async; it must be a plain function"),
        (Given(code=3), "extensions[0] (Given): what code(opts) returned must be what `quote`"),
        (Given(description=b""), "(Given): what description(opts) returned must be a str, not byt"),
        (Given(code=KeyError("k")), "extensions[0] (Given): code(opts) raised KeyError: 'k' ("),
        (Given(description=SystemExit(3)), "(Given): description(opts) raised SystemExit: 3"),
        (Extension(code="a\nb\0"), "extensions[0] (inline[0]): code contains a NUL character in l"),
        (Extension(code="\ud800"), "code contains a lone surrogate in line 1"),
    ],
)
def test_what_can_not_be_used_is_an_issue_that_says_why(listed: object, expected: str) -> None:
    assert expected in issues_of(listed)[0]


def test_an_empty_module_misses_both_callables_by_name() -> None:
    module = types.ModuleType("weather.empty")
    assert issues_of(module) == [
        "extensions[0] (weather.empty): module weather.empty has no callable code(opts)",
        "extensions[0] (weather.empty): module weather.empty has no callable description(opts)",
    ]


def test_a_raising_callable_is_reported_with_its_file_and_line() -> None:
    class Raising(OnlyCode):
        @staticmethod
        def description(opts: Any) -> str:
            return str(1 / 0)

    line = Raising.description.__code__.co_firstlineno + 2
    assert issues_of(Raising) == [
        "extensions[0] (Raising): description(opts) raised ZeroDivisionError: division by zero "
        f"({__file__}:{line})"
    ]


def test_the_issues_of_a_quotation_name_the_extension_that_made_it() -> None:
    class Quoting(NotCallable):
        @staticmethod
        def code(opts: Any) -> Any:
            def body() -> Any:
                return missing  # type: ignore[name-defined]  # noqa: F821

            return quote(body)

    issues = issues_of(Quoting)
    assert len(issues) == 2
    assert all(issue.startswith("extensions[0] (Quoting): code(opts): ") for issue in issues)


def test_all_issues_of_all_extensions_come_at_once_in_the_order_of_the_list() -> None:
    called = Given(code=ValueError("v"), description=TypeError("t"))
    issues = issues_of(
        7,
        Extension(code="", name="twice"),
        OnlyCode,
        called,
        Extension(code=Path("/nowhere/setup.py")),
        Extension(code="", name="twice"),
        (Given(), 5),
        Given(code=1, description=2),
    )
    assert [issue.split("]")[0] for issue in issues] == [
        f"extensions[{index}" for index in (0, 2, 3, 3, 4, 6, 7, 7, 1)
    ]
    assert len(called.calls) == 2


def test_the_error_says_all_issues_and_carries_them_as_data() -> None:
    with pytest.raises(ExtensionError) as caught:
        resolve([1, 2])
    error = caught.value
    assert error.details == {"issues": list(error.issues)}
    assert str(error) == "2 problems with the extensions:" + "".join(
        f"\n- {issue}" for issue in error.issues
    )


def test_a_huge_message_of_a_strangers_error_is_clipped() -> None:
    (issue,) = issues_of(Given(code=ValueError("x" * 100_000)))
    assert len(issue) < 1_000


def test_an_error_that_can_not_be_shown_is_still_an_issue() -> None:
    class Unshowable(Exception):  # noqa: N818
        def __str__(self) -> str:
            raise RuntimeError

    (issue,) = issues_of(Given(code=Unshowable()))
    assert "code(opts) raised Unshowable" in issue


def test_secrets_of_opts_and_quotations_are_collected_for_redaction() -> None:
    def body(key: str, token: str = "") -> None:
        print(key, token)

    class Keyed(NotCallable):
        @staticmethod
        def code(opts: Any) -> Any:
            return quote(body, key=opts["auth"]["key"], token=Secret("made"))

    inline = Extension(code=quote(body, key=Secret("in line")))
    keyed, other = resolve([(Keyed, {"auth": {"key": Secret("given")}}), inline])
    assert keyed.secrets == ("given", "made")
    assert other.secrets == ("in line",)
    assert keyed.setup is not None
    assert keyed.setup.values == {"key": "'given'", "token": "'made'"}
    assert not any(secret in repr((keyed, other)) for secret in ("given", "made", "in line"))


def test_a_secret_is_masked_in_issues() -> None:
    class Leaking(NotCallable):
        @staticmethod
        def code(opts: Any) -> Any:
            raise ValueError(f"bad key {opts['key'].reveal()!r}")

    (issue,) = issues_of((Leaking, {"key": Secret("hunter2")}))
    assert "bad key '[redacted]'" in issue


def test_a_secret_that_is_too_short_to_be_redacted_is_an_issue_without_being_shown() -> None:
    (issue,) = issues_of((Given(), {"key": Secret("zqx")}))
    assert issue.startswith("extensions[0] (Given): a secret of 3 characters can't be redacted")
    assert "zqx" not in issue


@pytest.mark.parametrize(
    "text",
    ['"""+__import__("os").system("x")+"""', "'''{braces}'''", "a\n\nb", "{0}%s\\n", "\0\r\t"],
)
def test_hostile_descriptions_and_names_stay_data(text: str) -> None:
    name = text.replace("\n", " ").replace("\0", " ").replace("\r", " ").replace("\t", " ") + "x"
    (extension,) = resolve([Extension(code="x = 1", description=text, name=name)])
    assert extension.description == text
    assert extension.setup == SetupCode(name=name, source="x = 1", file=f"<extension {name}>")


def test_repeats_are_numbered_in_order() -> None:
    extension = Given()
    names = names_of(*[(extension, {"i": index}) for index in range(300)])
    assert names[0] == "Given"
    assert names[-1] == "Given#300"
    assert len(set(names)) == 300


def test_a_syntax_tree_is_sent_as_source() -> None:
    tree = ast.parse("def f():\n    return 'a\\nb'")
    (extension,) = resolve([Extension(code=tree.body, name="tree")])
    assert extension.setup is not None
    assert extension.setup.file == "<extension tree>"
    namespace: dict[str, Any] = {}
    exec(extension.setup.source, namespace)
    assert namespace["f"]() == "a\nb"
