"""References: parsing them, and loading what they name."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import sample_weather
from hypothesis import given
from hypothesis import strategies as st

import replsvc_extensions
from replsvc.errors import ExtensionError
from replsvc.extension.references import Loaded, Reference, bundled, load, load_all, parse
from replsvc.extension.resolve import resolve


def issues_of(*references: str) -> list[str]:
    with pytest.raises(ExtensionError) as caught:
        load_all(references)
    return list(caught.value.issues)


@pytest.mark.parametrize(
    ("text", "target", "opts"),
    [
        ("pkg.mod:obj", "pkg.mod:obj", {}),
        ("pkg.mod:Outer.Inner", "pkg.mod:Outer.Inner", {}),
        ('pkg:obj={"a": "b=c"}', "pkg:obj", {"a": "b=c"}),
        ('pkg:obj = {"a": 1} ', "pkg:obj", {"a": 1}),
        ("dir/weather.py", "dir/weather.py", {}),
        ("a=b.py", "a=b.py", {}),
        ('a=b.py={"x": {"y": "={"}}', "a=b.py", {"x": {"y": "={"}}),
        ("files", "files", {}),
        ("files={}", "files", {}),
    ],
)
def test_a_reference_is_split_into_target_and_opts(
    text: str, target: str, opts: dict[str, Any]
) -> None:
    assert parse(text) == Reference(target, opts)


@given(
    opts=st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text(), max_size=2)),
    target=st.sampled_from(["pkg:obj", "a=b/c.py", "files"]),
)
def test_any_opts_survive_parsing(opts: dict[str, Any], target: str) -> None:
    assert parse(f"{target}={json.dumps(opts)}") == Reference(target, opts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' names no extension"),
        ('={"a": 1}', "names no extension"),
        ("a\0b.py", "names no extension"),
        ("pkg:obj=", "the opts of 'pkg:obj' are not JSON"),
        ("pkg:obj={a: 1}", "the opts of 'pkg:obj' are not JSON"),
        ("pkg:obj=[1]", "the opts of 'pkg:obj' must be a JSON object, not list"),
        ("weather.py=3", "the opts of 'weather.py' must be a JSON object, not int"),
        ('pkg:obj={"a": NaN}', "NaN is not JSON"),
        ("pkg:obj={" + '"a":{' * 100_000, "are not JSON"),
    ],
)
def test_a_malformed_reference_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ExtensionError) as caught:
        parse(text)
    assert says in caught.value.message
    assert caught.value.hint.startswith("Write ")


def test_an_object_of_a_module_is_loaded_under_its_name() -> None:
    loaded = load('sample_weather:Weather={"a": 1}')
    assert loaded == Loaded("Weather", sample_weather.Weather, {"a": 1})
    assert loaded.item == (sample_weather.Weather, {"a": 1})
    assert load("sample_weather:instance").item is sample_weather.instance


def test_an_inline_extension_takes_the_name_that_it_is_referred_to_by() -> None:
    loaded = load("sample_weather:ping")
    assert loaded.thing == dataclasses.replace(sample_weather.ping, name="ping")
    assert load("sample_weather:named").name == "announcer"
    assert load("sample_weather:named").thing is sample_weather.named


def test_a_module_of_a_package_is_loaded_without_having_been_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package_of_extensions"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("def code(opts): return ''\ndef description(opts): return ''")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load("package_of_extensions:inner")
    assert loaded.name == "inner"
    assert loaded.thing is importlib.import_module("package_of_extensions.inner")


WEATHER = """
import dataclasses, sys
@dataclasses.dataclass
class Units:
    name: str
def code(opts):
    raise RuntimeError("from the file")
def description(opts):
    return sys.modules[__name__].Units(opts["units"]).name
"""


def test_a_file_is_loaded_as_a_module_of_a_private_name(tmp_path: Path) -> None:
    path = tmp_path / "my-weather.py"
    path.write_text(WEATHER)
    search = list(sys.path)
    loaded = load(f"{path}={{}}")
    module: Any = loaded.thing
    assert loaded.name == "my-weather"
    assert module.__name__ != "my-weather"
    assert sys.modules[module.__name__] is module
    assert sys.path == search
    assert [*tmp_path.iterdir()] == [path]
    assert module.description({"units": "C"}) == "C"
    assert pickle.loads(pickle.dumps(module.Units("C"))) == module.Units("C")
    with pytest.raises(RuntimeError) as caught:
        module.code({})
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.line) == (str(path), 'raise RuntimeError("from the file")')


def test_a_loaded_files_extension_is_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "my-weather.py"
    path.write_text("def code(opts): return ''\ndef description(opts): return opts['units']\n")
    loaded = load_all([f'{path}={{"units": "C"}}', f'{path}={{"units": "F"}}'])
    resolved = resolve([one.item for one in loaded])
    assert [(one.name, one.description) for one in resolved] == [
        ("my-weather", "C"),
        ("my-weather#2", "F"),
    ]


def test_a_file_named_twice_is_run_once_and_anew_by_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counted.py"
    path.write_text("import sys; sys.argv.append('loaded')\n")
    (tmp_path / "link.py").symlink_to(path)
    monkeypatch.setattr(sys, "argv", [])
    first, second, third = load_all([str(path), f"{tmp_path}/./counted.py", f"{tmp_path}/link.py"])
    assert first.thing is second.thing is third.thing
    assert sys.argv == ["loaded"]
    path.write_text("import sys; sys.argv.append('changed')\n")
    assert load(str(path)).thing is not first.thing
    assert sys.argv == ["loaded", "changed"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "import sys\n\nx = 1 / 0\n",
            "raised on import: ZeroDivisionError: division by zero ({}:3)",
        ),
        ("x = 1\ndef broken(:\n", "raised on import: SyntaxError: invalid syntax ({}:2)"),
        ("raise SystemExit(3)\n", "raised on import: SystemExit: 3 ({}:1)"),
        ("x = '\0'\n", "raised on import: "),
    ],
    ids=["exception", "syntax", "exit", "NUL"],
)
def test_a_file_that_can_not_be_imported_says_where_it_failed(
    tmp_path: Path, source: str, says: str
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    modules = set(sys.modules)
    (issue,) = issues_of(str(path))
    assert issue.startswith(f"extensions[0]: '{path}' ")
    assert says.format(path) in issue
    assert set(sys.modules) == modules


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("sample_weather:Wether", "sample_weather has no 'Wether'. Did you mean 'Weather'?"),
        ("sample_weather:Weather.cod", "sample_weather.Weather has no 'cod'. Did you mean 'code'?"),
        ("no_such_module_here:x", "there is no module no_such_module_here. It must be installed"),
        ("sample_weather.inner:x", "there is no module sample_weather.inner"),
        ("sample_weather:", "'sample_weather:' is not module:object"),
        (":x", "':x' is not module:object"),
        ("a b:c", "'a b:c' is not module:object"),
        ("weather.py:Weather", "'weather.py' does not exist. Paths are relative to"),
        ("sample_weather", "no bundled extension is called 'sample_weather'"),
        ("/nowhere/at/all.py", "'/nowhere/at/all.py' does not exist. Paths are relative to"),
        ('sample_weather:ping={"a": 1}', "sample_weather:ping takes no opts"),
    ],
)
def test_what_can_not_be_found_says_what_to_do(reference: str, says: str) -> None:
    (issue,) = issues_of(reference)
    assert says in issue


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    (issue,) = issues_of(str(tmp_path / "folder.py"))
    assert "is not a file" in issue
    (issue,) = issues_of("x" * 5_000 + ".py")
    assert "can't be read" in issue


def test_a_module_that_is_missing_inside_another_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_another.py").write_text("\nimport not_installed_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    (issue,) = issues_of("needs_another:x")
    assert "module needs_another raised on import: ModuleNotFoundError: No module named" in issue
    assert "needs_another.py:2)" in issue


def test_an_unknown_plain_name_lists_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("charts", "filing", "_private"):
        (tmp_path / f"{name}.py").write_text("def code(opts): pass\ndef description(opts): pass")
    monkeypatch.setattr(replsvc_extensions, "__path__", [str(tmp_path)])
    assert bundled() == ["charts", "filing"]
    (issue,) = issues_of("fling")
    assert "is called 'fling'. Did you mean 'filing'? Available: charts, filing." in issue
    try:
        loaded = load("charts")
        assert loaded.name == "charts"
        assert loaded.thing is sys.modules["replsvc_extensions.charts"]
    finally:
        sys.modules.pop("replsvc_extensions.charts", None)
        vars(replsvc_extensions).pop("charts", None)


def test_all_references_are_tried_and_their_issues_come_in_order() -> None:
    issues = issues_of("nope", "sample_weather:ping", "pkg:obj=[]", "no_such_module_here:x")
    assert [issue.split("]")[0] for issue in issues] == [
        "extensions[0",
        "extensions[2",
        "extensions[3",
    ]


def test_one_loaded_reference_names_its_place_in_the_callers_list() -> None:
    with pytest.raises(ExtensionError, match=r"^extensions\[4\]: "):
        load("nope", index=4)


def test_opts_are_not_in_a_repr() -> None:
    assert "hunter2" not in repr(parse('pkg:obj={"key": "hunter2"}'))
    assert "hunter2" not in repr(load('sample_weather:Weather={"key": "hunter2"}'))
