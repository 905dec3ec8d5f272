"""The project's own files agree with each other: locks, README, generated docs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from replsvc.config import Limits

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"^([a-zA-Z0-9._-]+)==(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {canonicalize_name(name): version for name, version in PIN.findall(text)}


def assert_pinned(requirements: list[str], lock: str) -> None:
    locked = pins(lock)
    for text in requirements:
        requirement = Requirement(text)
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{text} is not in {lock}: run nox -s lock"
        assert requirement.specifier.contains(version), f"{lock} pins {version} for {text}"


def test_the_lock_pins_what_the_project_depends_on(project: dict[str, Any]) -> None:
    assert_pinned(project["project"]["dependencies"], "requirements.lock")


def test_the_development_lock_pins_every_group_and_extra(project: dict[str, Any]) -> None:
    wanted = list(project["project"]["dependencies"])
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    for group in project["dependency-groups"].values():
        wanted += [entry for entry in group if isinstance(entry, str)]
    assert_pinned(wanted, "requirements-dev.lock")


def test_tests_run_on_the_versions_that_users_get() -> None:
    development = pins("requirements-dev.lock")
    for name, version in pins("requirements.lock").items():
        assert development[name] == version, name


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_hashed_pins_and_comments_and_nothing_else(lock: str) -> None:
    entries = re.sub(r"\\\n\s*", "", (ROOT / lock).read_text(encoding="utf-8")).splitlines()
    wrong = [
        entry
        for entry in entries
        if entry.strip()
        and not re.fullmatch(r"\s*#[^/]*", entry)  # no paths and addresses in comments either
        and not re.fullmatch(r"[\w.\[\]-]+==\S+ (--hash=sha256:[0-9a-f]{64} ?)+", entry)
    ]
    assert wrong == []


def test_the_table_of_defaults_is_the_one_in_the_code() -> None:
    page = ROOT / "docs" / "operations.md"
    command = "import defaults; print(defaults.page(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        check=True,
    )
    assert page.read_text(encoding="utf-8") == done.stdout, "run nox -s docs"


def test_every_default_of_a_limit_is_finite() -> None:
    # An operator may set them; what is shared fairly needs no number.
    unset = {"cpu_s", "cpu_cores", "wall_s", "output_bytes_per_s"}
    for name, value in Limits():
        if name in unset:
            assert value is None, name
            continue
        assert value is not None, name
        assert 0 < value < 2**40, name


def test_every_setting_is_explained() -> None:
    rows = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in rows if row.startswith("| `") and row.endswith("|  |")] == []


def test_the_readme_has_one_line_that_continuous_integration_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = re.search(r"grep -E '([^']+)' README\.md", script)
    assert found is not None
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in readme if re.search(found[1], line)]) == 1
