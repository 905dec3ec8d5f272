"""The guest is loaded by Pythons that we do not choose."""

from __future__ import annotations

import ast
import re
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


# documented, their underscores notwithstanding
DOCUMENTED = {"_exit", "_getframe", "_replace"}


def test_private_names_of_others_are_in_the_one_file_that_explains_them() -> None:
    trees = {file.name: ast.parse(file.read_text()) for file in FILES}
    explained = ast.get_docstring(trees["compat.py"]) or ""
    ours = set[str]()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                ours.add(node.id if isinstance(node, ast.Name) else node.attr)
    used = {
        (name, node.attr)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
    }
    outside = {(name, attr) for name, attr in used if name != "compat.py" and attr not in ours}
    assert {attr for _, attr in outside} <= DOCUMENTED
    inside = {attr for name, attr in used if name == "compat.py"} - ours - DOCUMENTED
    assert {attr for attr in inside if attr not in explained} == set()


def test_what_overrides_a_private_name_of_others_is_explained_there() -> None:
    import ipykernel.displayhook
    import ipykernel.ipkernel
    import ipykernel.kernelapp
    import ipykernel.zmqshell
    import IPython.core.profiledir
    import jupyter_client.session

    stock = (
        IPython.core.profiledir.ProfileDir,
        ipykernel.displayhook.ZMQShellDisplayHook,
        ipykernel.ipkernel.IPythonKernel,
        ipykernel.kernelapp.IPKernelApp,
        ipykernel.zmqshell.ZMQDisplayPublisher,
        ipykernel.zmqshell.ZMQInteractiveShell,
        jupyter_client.session.Session,
    )
    explained = (GUEST / "compat.py").read_text()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            theirs = [one for one in stock if one.__name__ in bases]
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and re.match("_[^_]", member.name):
                    overridden = any(hasattr(one, member.name) for one in theirs)
                    assert not overridden or f".{member.name}`" in explained, member.name


def test_what_reports_a_missing_ipykernel_needs_nothing_but_python() -> None:
    import sys

    for name in ("__main__.py", "link.py"):
        for node in ast.walk(ast.parse((GUEST / name).read_text())):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert alias.name.partition(".")[0] in sys.stdlib_module_names
