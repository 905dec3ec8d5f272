from __future__ import annotations

import ast
from pathlib import Path

import pytest

import replsvc


@pytest.mark.parametrize("name", replsvc.__all__)
def test_every_public_name_is_there_and_documented(name):
    found = getattr(replsvc, name)
    assert found.__doc__
    assert found.__name__ == name


def test_type_checkers_see_the_same_names_from_the_same_places():
    tree = ast.parse(Path(replsvc.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(replsvc.__all__)
    for name, module in seen.items():
        assert getattr(replsvc, name).__module__ == module


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Coordinater'"):
        replsvc.Coordinater  # noqa: B018 - looking it up is the test


def test_dir_lists_what_can_be_imported():
    assert set(replsvc.__all__) <= set(dir(replsvc))
