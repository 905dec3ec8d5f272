"""`quote`: what crosses, at which lines, and what it refuses."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import re
import sys
import traceback
from pathlib import Path, PosixPath
from typing import Any

import pytest
import sample_quotes as sample
from hypothesis import given
from hypothesis import strategies as st

from replsvc.errors import ExtensionError
from replsvc.extension.contract import Quoted, Secret
from replsvc.extension.quote import quote

SAMPLE = Path(sample.__file__)


def line_of(mark: str, path: Path = SAMPLE) -> int:
    """The number of the line that ends with `# line: MARK`."""
    (number,) = (
        number
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if line.endswith(f"# line: {mark}")
    )
    return number


def run(quoted: Quoted) -> dict[str, Any]:
    """Run it as `Quoted` documents it, with nothing of ours."""
    tree = ast.parse(quoted.source)
    (function,) = tree.body[0].body if isinstance(tree.body[0], ast.If) else tree.body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == quoted.body_of
    ast.increment_lineno(function, quoted.first_line - 1)
    code = compile(ast.Module(body=function.body, type_ignores=[]), quoted.file, "exec")
    namespace = {name: ast.literal_eval(text) for name, text in quoted.values.items()}
    namespace |= {"__builtins__": builtins, "__name__": "setup"}
    exec(code, namespace)
    return namespace


def failing_line(namespace: dict[str, Any]) -> tuple[str, int | None]:
    with pytest.raises(RuntimeError) as caught:
        namespace["fail"]()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    return frame.filename, frame.lineno


def issues_of(function: Any, **values: Any) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        quote(function, **values)
    return list(caught.value.issues)


def test_the_body_runs_as_a_module_with_its_parameters_bound() -> None:
    namespace = run(quote(sample.plain, greeting="hi"))
    assert namespace["text"] == "hi!hi!"
    assert namespace["__doc__"] == "Becomes the module's docstring."


def test_tracebacks_point_at_the_real_file_and_line() -> None:
    namespace = run(quote(sample.plain, greeting="hi"))
    assert failing_line(namespace) == (str(SAMPLE), line_of("plain-fail"))


def test_an_indented_function_keeps_its_lines_and_its_strings() -> None:
    quoted = quote(sample.Weather.Inner.indented, key="k")
    namespace = run(quoted)
    assert quoted.source.startswith("if True:\n")
    assert namespace["block"] == "\n  two spaces\nno indentation\n    \ta tab\n            "
    assert namespace["header"] == {"authorization": "k"}
    assert failing_line(namespace) == (str(SAMPLE), line_of("indented-fail"))


def test_lines_left_of_a_nested_functions_indentation_do_no_harm() -> None:
    namespace = run(quote(sample.make_nested(True), value=3))
    assert namespace["result"] == [0, 1, 2]
    assert failing_line(namespace) == (str(SAMPLE), line_of("nested-fail"))


def test_a_function_on_one_line_is_quoted() -> None:
    assert run(quote(sample.one_line, x=1))["z"] == 4


def test_a_staticmethod_object_is_its_function() -> None:
    wrapped = vars(sample.Weather.Inner)["indented"]
    assert isinstance(wrapped, staticmethod)
    assert quote(wrapped, key="k") == quote(sample.Weather.Inner.indented, key="k")


def test_every_way_to_bind_a_name_is_seen() -> None:
    assert quote(sample.everything_bound, given=1).values == {"given": "1", "other": "None"}


def test_every_name_that_nothing_binds_is_reported_at_its_line() -> None:
    lines = SAMPLE.read_text().split("\n")
    first = lines.index("def everything_unbound(given):")
    last = lines.index("def returns(x):")
    expected = {
        (number, match[1])
        for number, text in enumerate(lines, 1)
        if first < number < last and (match := re.search(r"# line: (\w+)$", text))
    }
    names = ["default", "width"]
    reported = set()
    for issue in issues_of(sample.everything_unbound, given=1):
        place, name = issue.split(": `", 1)
        file, _, line = place.rpartition(":")
        assert file == str(SAMPLE)
        reported.add((int(line), name.split("`")[0]))
    assert {pair for pair in reported if pair[1] not in names} == expected
    assert {name for _, name in reported} >= set(names)
    assert len(expected) == 17


def test_a_closures_variable_is_a_free_variable() -> None:
    (issue,) = issues_of(sample.closes_over(1))
    assert issue.startswith(f"{SAMPLE}:{line_of('captured')}: `captured`")


@pytest.mark.parametrize(
    ("function", "values", "keyword", "marks"),
    [
        (sample.returns, {"x": 1}, "return", ["return"]),
        (sample.yields, {}, "yield", ["yield", "yield-from"]),
        (sample.makes_nonlocal(0), {}, "nonlocal", ["nonlocal"]),
        (sample.inner_nonlocal, {}, "nonlocal", ["inner-nonlocal"]),
    ],
    ids=["return", "yield", "nonlocal", "nonlocal of a nested function"],
)
def test_what_needs_the_function_around_is_reported_at_its_line(
    function: Any, values: dict[str, Any], keyword: str, marks: list[str]
) -> None:
    issues = issues_of(function, **values)
    for mark, issue in zip(marks, issues, strict=True):
        assert issue.startswith(f"{SAMPLE}:{line_of(mark)}: `{keyword}")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (sample.a_lambda, "a lambda has none; use def"),
        (sample.coroutine, "is async"),
        (sample.variadic, "takes *args or **kwargs"),
        (sample.decorated, "is decorated by @tag"),
        (sample.replaced, "was replaced by a decorator"),
    ],
    ids=["lambda", "async", "variadic", "decorated", "wrapped"],
)
def test_a_function_whose_body_alone_is_not_the_code_is_refused_with_its_place(
    function: Any, says: str
) -> None:
    (issue,) = issues_of(function)
    assert issue.startswith(f"{SAMPLE}:")
    assert says in issue


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (len, "the builtin len, which has no source"),
        (sample.Weather, "the class Weather"),
        (sample.Weather().method, "the bound method Weather.method"),
        (functools.partial(sample.plain), "a functools.partial"),
        ("print(1)", "not an instance of str"),
        (None, "not an instance of NoneType"),
    ],
    ids=["builtin", "class", "method", "partial", "str", "None"],
)
def test_what_is_no_function_is_refused_by_what_it_is(thing: Any, says: str) -> None:
    (issue,) = issues_of(thing)
    assert says in issue


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def made(): pass", namespace)
    (issue,) = issues_of(namespace["made"])
    assert issue == "<string>:1: made has no source that can be read; define it in a file"


def test_a_file_that_changed_since_its_import_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def body():\n    x = 1\n")
    spec = importlib.util.spec_from_file_location("changing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert quote(module.body).source == "def body():\n    x = 1\n"
    path.write_text("# one line more\ndef body():\n    x = 2\n")
    (issue,) = issues_of(module.body)
    assert issue == f"{path}:1: body is not there any more; its file changed since it was imported"


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("class A:\n\tdef body():\n\t\tx = '''\n\t\t'''\n", "\n\t\t"),
        ("\fdef body():\n    x = '\f'\n", "\f"),
        ("\ufeffdef body():\n    x = 'bom'\n", "bom"),
        ("class A:\r\n  def body():\r\n    x = 'crlf'\r\n", "crlf"),
        ("def body():\n    x = 'no newline at the end'", "no newline at the end"),
        ("def body():\n    x = 'ünïcödé \u2028 \x0b'\n", "ünïcödé \u2028 \x0b"),
    ],
    ids=["tabs", "form feed", "BOM", "CRLF", "no last newline", "line separators"],
)
def test_a_file_of_any_shape_is_cut_right(tmp_path: Path, source: str, result: str) -> None:
    path = tmp_path / "shaped.py"
    path.write_bytes(source.encode())
    spec = importlib.util.spec_from_file_location("shaped", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = module.A.body if hasattr(module, "A") else module.body
    assert run(quote(function))["x"] == result


def test_values_are_checked_against_the_signature() -> None:
    place = f"{SAMPLE}:{sample.keyword_only.__code__.co_firstlineno}: keyword_only"
    assert issues_of(sample.keyword_only, first=1, forth=2) == [
        f"{place}: parameter `fourth` has no value",
        f"{place}: there is no parameter `forth`. Did you mean 'fourth'?",
    ]


def test_parameters_that_are_not_given_take_their_defaults() -> None:
    namespace = run(quote(sample.keyword_only, first=1, fourth=b"x"))
    assert namespace["total"] == (1, (1, 2), {"k": [None]}, b"x")


def test_a_parameter_may_be_called_function_or_hide_a_builtin() -> None:
    assert run(quote(sample.shadows_builtin, list=[1]))["result"] == [1]


def test_a_parameter_that_its_class_renames_is_refused() -> None:
    issues = issues_of(sample.Weather.mangled, _Weather__secret=1)
    assert "has the parameter `__secret`, which its class renames" in issues[0]


def test_a_value_without_literal_form_names_parameter_and_type() -> None:
    (issue,) = issues_of(sample.plain, greeting=[Path("/"), 1])
    named = f"{PosixPath.__module__}.PosixPath"  # Python 3.13 has it in a module of its own
    assert issue.endswith(f"plain: parameter `greeting`: at [0]: {named} has no literal form")


def test_all_problems_of_a_function_are_reported_together() -> None:
    issues = issues_of(sample.returns, y=object())
    assert [issue.split("`")[1] for issue in issues] == ["x", "y", "return"]


def test_values_are_taken_when_quoted_and_not_later() -> None:
    value = [1]
    quoted = quote(sample.shadows_builtin, list=value)
    value.append(2)
    assert run(quoted)["result"] == [1]


def test_a_secret_crosses_as_its_text_and_is_shown_nowhere() -> None:
    quoted = quote(sample.shadows_builtin, list={"token": Secret("hunter2")})
    assert run(quoted)["result"] == {"token": "hunter2"}
    assert quoted.secrets == ("hunter2",)
    assert "hunter2" not in repr(quoted)


def test_a_secret_is_not_in_the_message_of_an_error() -> None:
    (issue,) = issues_of(sample.shadows_builtin, list={Secret("hunter2"): object()})
    assert "hunter2" not in issue


TEXTS = st.text() | st.sampled_from(
    ['"""+__import__("os").system("x")+"""', "'''", "{x!r}", "\\", "\n\r\0\ud800", "%s", "${HOME}"]
)
ATOMS = st.none() | st.booleans() | st.integers() | TEXTS | st.binary()
HASHABLE = st.recursive(ATOMS, lambda inner: st.tuples(inner, inner), max_leaves=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.complex_numbers(
    allow_nan=False, allow_infinity=False
)
VALUES = st.recursive(
    ATOMS | NUMBERS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(HASHABLE, inner)
        | st.sets(HASHABLE)
    ),
    max_leaves=12,
)


@given(value=VALUES)
def test_any_value_of_literals_arrives_as_it_was(value: object) -> None:
    arrived = run(quote(sample.shadows_builtin, list=value))["result"]
    assert arrived == value
    assert typed(arrived) == typed(value)


def typed(value: object) -> object:
    """The types in `value`, in its shape; sets as bags of types."""
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    if isinstance(value, set):
        return "set", sorted(repr(typed(item)) for item in value)
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value)


def test_quoting_leaves_nothing_behind_in_the_import_system() -> None:
    before = set(sys.modules)
    quote(sample.plain, greeting="hi")
    assert set(sys.modules) == before
