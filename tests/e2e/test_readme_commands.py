"""The README's commands, in what a newcomer has: the files of a clone, Python and pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.e2e


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a clone of the working tree would hold: no environment, no caches."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "clone" / name)
    return tmp_path / "clone"


@pytest.mark.needs("git", "index")
def test_the_first_command_installs_and_runs_the_main_job(clone: Path) -> None:
    readme = (clone / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)\n```", readme, re.DOTALL)
    # the test's own environment must not help
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("COVERAGE_")
    }
    done = subprocess.run(
        ["sh", "-c", blocks[0]],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n"
