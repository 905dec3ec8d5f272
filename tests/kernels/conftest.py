"""Kernelspecs, directories and watched processes for the tests of kernels."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from kernel_rigs import Watched

import kernel_python
import measured
from replsvc_kernels.kernel import LaunchSpec

KERNELSPECS = {
    "stock": {
        "argv": [kernel_python.path, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Stock Python",
        "language": "python",
        "env": {"FROM_KERNELSPEC": "yes"},
    },
    "by-message": {
        "argv": [kernel_python.path, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Stock Python, interrupted by message",
        "language": "python",
        "interrupt_mode": "message",
    },
    "bash": {
        "argv": [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"],
        "display_name": "Bash",
        "language": "bash",
        "env": {"PS1": "$"},
    },
    "deaf": {
        "argv": [sys.executable, "-c", "import time; time.sleep(1000)", "{connection_file}"],
        "display_name": "Never ready",
        "language": "none",
    },
    "broken": {
        "argv": [sys.executable, "-c", "raise SystemExit('no such luck')"],
        "display_name": "Ends at once",
        "language": "none",
    },
    "missing": {
        "argv": ["/no/such/program", "{connection_file}"],
        "display_name": "Not there",
        "language": "none",
    },
    "unprovided": {
        "argv": [sys.executable],
        "display_name": "Its provisioner is not installed",
        "language": "none",
        "metadata": {"kernel_provisioner": {"provisioner_name": "no-such-provisioner"}},
    },
}


@pytest.fixture(scope="session")
def kernelspecs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jupyter")
    for name, spec in KERNELSPECS.items():
        directory = root / "kernels" / name
        directory.mkdir(parents=True)
        (directory / "kernel.json").write_text(json.dumps(spec))
    (root / "kernels" / "garbled").mkdir()
    (root / "kernels" / "garbled" / "kernel.json").write_text("{")
    return root


@pytest.fixture
def jupyter_path(kernelspecs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_PATH", str(kernelspecs))
    return kernelspecs


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A short path, where unix sockets fit; kernels must leave nothing in it."""
    path = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
    try:
        yield path
        assert list(path.iterdir()) == []
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def spec(tmp_path: Path) -> LaunchSpec:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return LaunchSpec(str(workspace), python=kernel_python.path)


@pytest.fixture
def watched() -> Iterator[Watched]:
    held = Watched()
    try:
        yield held
    finally:
        held.close()


# Coverage


@pytest.fixture(autouse=True)
def _kernels_count_lines() -> Iterator[None]:
    """Declare coverage's own variable for every kernel that a backend starts.

    Only here: what others run in kernels takes several times as long under it.
    """
    if not (more := measured.variables()):
        yield
        return
    from replsvc_kernels.backends import process

    plain = process.kernel_environment

    def environment(
        spec: LaunchSpec, python: str, directory: str | None = None
    ) -> Mapping[str, str]:
        return {**plain(spec, python, directory), **more}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "kernel_environment", environment)
        yield
