"""Every example of docs/extensions.md runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "extensions.md"
CONFTEST = "from replsvc.testing import extension_session\n"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(number: int, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[number], encoding="utf-8")
    command = [sys.executable, str(file)]
    if "def test_" in EXAMPLES[number]:
        (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        command[1:1] = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "REPLSVC_ISOLATION": "none"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trio.run(main)" in EXAMPLES[number] or "passed" in done.stdout


def test_the_page_says_where_the_fixture_comes_from() -> None:
    assert f"`{CONFTEST.strip()}`" in PAGE.read_text("utf-8")


def test_the_page_has_an_example_of_each_form() -> None:
    assert len(EXAMPLES) >= 4
