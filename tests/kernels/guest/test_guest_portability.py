"""The guest is loaded by Pythons that we do not choose."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

GUEST = Path(__file__).parents[3] / "kernels" / "replsvc_kernels" / "guest"
FILES = sorted(GUEST.glob("*.py"))
OURS = {"replsvc", "replsvc_kernels", "replsvc_extensions", "trio"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_is_python_3_9(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    if len(tree.body) > 1:
        # annotations may then use what Python 3.9 can't evaluate
        assert isinstance(tree.body[1], ast.ImportFrom)
        assert tree.body[1].module == "__future__"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_imports_what_belongs_to_the_host(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        assert not {name.partition(".")[0] for name in names} & OURS


def test_what_reports_a_missing_ipykernel_needs_nothing_but_python() -> None:
    import sys

    for name in ("__main__.py", "link.py"):
        for node in ast.walk(ast.parse((GUEST / name).read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.partition(".")[0] in sys.stdlib_module_names
