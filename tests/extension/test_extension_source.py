"""Setup code from files, strings and syntax trees."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from replsvc.extension.source import SourceError, setup_code


def refusal(code: ast.Module | Path | str) -> str:
    with pytest.raises(SourceError) as caught:
        setup_code("e", code)
    return str(caught.value)


def tree_of(*body: ast.stmt) -> ast.Module:
    return ast.Module(body=list(body), type_ignores=[])


def assignment_of_nothing() -> ast.Assign:
    node = ast.Assign([ast.Name("x", ast.Store())], ast.Constant(1))
    del node.value  # newer Pythons don't make one without it
    return node


def test_a_string_is_sent_as_it_is_even_when_it_does_not_parse() -> None:
    source = "def broken(:\r\n\t\f\ufeff"
    assert setup_code("e", source).source == source


@pytest.mark.parametrize(
    ("data", "source"),
    [
        ("x = 'ünï'\n".encode(), "x = 'ünï'\n"),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", "# -*- coding: latin-1 -*-\nx = 'é'\n"),
        (b"x = 1\r\ny = 2\r\n", "x = 1\ny = 2\n"),
        (b"", ""),
    ],
    ids=["UTF-8", "BOM", "declared", "CRLF", "empty"],
)
def test_a_file_is_read_in_its_encoding_and_keeps_its_place(
    tmp_path: Path, data: bytes, source: str
) -> None:
    path = tmp_path / "setup.py"
    path.write_bytes(data)
    sent = setup_code("e", path)
    assert (sent.source, sent.file, sent.first_line) == (source, str(path), 1)
    assert sent.body_of is None


def test_a_relative_path_is_sent_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "setup.py").write_text("x = 1")
    monkeypatch.chdir(tmp_path)
    assert setup_code("e", Path("setup.py")).file == str(tmp_path / "setup.py")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x = '\xff'", "can't be decoded"),
        (b"# coding: klingon\n", "can't be decoded: unknown encoding"),
        (b"x = '\0'\ny = '\0'", "contains a NUL character in line 1"),
    ],
    ids=["not UTF-8", "unknown encoding", "NUL"],
)
def test_a_file_that_is_no_source_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "setup.py"
    path.write_bytes(data)
    assert says in refusal(path)


def test_a_path_that_can_not_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal(tmp_path / "gone.py").endswith(
        "gone.py can't be read: No such file or directory"
    )
    assert refusal(tmp_path).endswith("is not a regular file")
    assert refusal(tmp_path / "pipe").endswith("is not a regular file")
    assert "can't be read" in refusal(Path("nul\0.py"))
    assert "can't be read" in refusal(Path("x" * 5_000))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            tree_of(ast.Expr(ast.Name("x\nimport os", ast.Load()))),
            "is a syntax tree whose Name.id is 'x\\nimport os', not a Python name",
        ),
        (tree_of(ast.Import([ast.alias("os; x")])), "alias.name is 'os; x'"),
        (tree_of(ast.Global(["a", "b c"])), "Global.names is 'b c'"),
        (tree_of(ast.Expr(ast.Name("class", ast.Load()))), "Name.id is 'class'"),
        (tree_of(ast.Expr(ast.Constant(object()))), "is not a valid syntax tree: TypeError"),
        (tree_of(assignment_of_nothing()), "is not a valid syntax tree"),
        (tree_of(ast.Return([])), "is not a valid syntax tree"),  # type: ignore[arg-type]
    ],
    ids=["name", "import", "global", "keyword", "constant", "empty node", "wrong node"],
)
def test_a_malformed_syntax_tree_is_refused(tree: ast.Module, says: str) -> None:
    assert says in refusal(tree)


def test_a_tree_built_by_hand_needs_no_line_numbers_and_is_not_changed() -> None:
    name = ast.Name("x", ast.Store())
    tree = tree_of(ast.Assign([name], ast.Constant(-1)))
    assert setup_code("e", tree).source == "x = -1"
    assert not hasattr(name, "lineno")


def test_names_in_every_place_of_a_tree_are_accepted() -> None:
    source = """\
from os.path import *
from . import a as b
import os.path as c
async def f(x, *y, z=1, **w):
    global g
    try:
        match x:
            case {'k': v, **rest} | A(q=[*h]) as whole:
                pass
    except E as e:
        x.attribute = f(k=1)
"""
    assert ast.dump(ast.parse(setup_code("e", ast.parse(source)).source)) == ast.dump(
        ast.parse(source)
    )


def test_what_only_a_compiler_refuses_is_left_to_the_kernels_python() -> None:
    assert setup_code("e", ast.parse("return 1")).source == "return 1"
