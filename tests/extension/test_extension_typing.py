"""What an author writes is checked by mypy, strictly: what is right passes, what is wrong does not.

The files in tests/typing are read and never run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mypy import api

TYPING = Path(__file__).parent.parent / "typing"
ROOT = TYPING.parent.parent
REFUSED = re.compile(r"# refused: ([\w-]+)")


@pytest.fixture(scope="module")
def found() -> dict[str, set[tuple[int, str]]]:
    """What mypy says of each file: lines and codes."""
    files = sorted(map(str, TYPING.glob("*.py")))
    out, errors, _ = api.run(
        [
            "--config-file", str(ROOT / "pyproject.toml"),
            "--python-executable", sys.executable,
            *files,
        ]
    )  # fmt: skip
    assert errors == ""
    said: dict[str, set[tuple[int, str]]] = {Path(file).name: set() for file in files}
    for line in out.splitlines():
        if match := re.match(r"(.+?):(\d+): error: .*\[([\w-]+)\]$", line):
            said.setdefault(Path(match[1]).name, set()).add((int(match[2]), match[3]))
    return said


def expected(name: str) -> set[tuple[int, str]]:
    lines = (TYPING / name).read_text(encoding="utf-8").splitlines()
    return {(n, m[1]) for n, line in enumerate(lines, 1) if (m := REFUSED.search(line))}


@pytest.mark.parametrize("name", sorted(path.name for path in TYPING.glob("*.py")))
def test_mypy_refuses_what_is_wrong_and_nothing_else(
    name: str, found: dict[str, set[tuple[int, str]]]
) -> None:
    assert found[name] == expected(name)
    assert bool(expected(name)) == ("do_not" in name)
