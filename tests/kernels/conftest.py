"""Real kernels for tests: kernelspecs of their own, and ways to watch processes end."""

from __future__ import annotations

import json
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from replsvc_kernels.kernel import LaunchSpec

KERNELSPECS = {
    "stock": {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Stock Python",
        "language": "python",
        "env": {"FROM_KERNELSPEC": "yes"},
    },
    "by-message": {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
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
    return LaunchSpec(str(workspace))


class Watched:
    """Processes held by pidfd, so that a pid that is given out anew is not mistaken for them."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def add(self, pid: int) -> None:
        self._handles[pid] = os.pidfd_open(pid)

    def alive(self) -> list[int]:
        return [pid for pid, fd in self._handles.items() if not select.select([fd], [], [], 0)[0]]

    def wait_gone(self, timeout_s: float = 30) -> None:
        for pid, fd in self._handles.items():
            assert select.select([fd], [], [], timeout_s)[0], f"process {pid} is still there"

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])


@pytest.fixture
def watched() -> Iterator[Watched]:
    held = Watched()
    try:
        yield held
    finally:
        held.close()
