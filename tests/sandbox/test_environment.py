"""An environment shows what its interpreter needs, and nothing that lies beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from replsvc_kernels.sandbox.environment import (
    SYSTEM,
    EnvironmentRefused,
    check_apart,
    read_only_paths,
)


def covers(paths: tuple[str, ...], path: str | Path) -> bool:
    return any(Path(path).is_relative_to(one) for one in (*paths, *SYSTEM))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("environments") / "env"
    venv.create(path, symlinks=True, with_pip=False)
    return path


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def test_a_virtual_environment_shows_itself_and_the_interpreter_that_it_links_to(
    environment: Path,
) -> None:
    paths = read_only_paths(str(environment / "bin/python"))
    assert str(environment) in paths
    assert covers(paths, os.path.realpath(environment / "bin/python"))
    assert covers(paths, os.__file__)
    # One entry for each place: none lies in another.
    for one in paths:
        assert not covers(tuple(other for other in paths if other != one), one)


def test_a_link_to_an_environment_is_shown_with_what_it_leads_to(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "current").symlink_to(environment)
    paths = read_only_paths(str(tmp_path / "current/bin/python"))
    assert str(tmp_path / "current") in {
        os.path.commonpath([p, tmp_path / "current"]) for p in paths
    }
    assert covers(paths, environment / "bin/python")


def test_of_a_checkout_on_the_path_only_what_can_be_imported_is_shown(
    environment: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    for name in ("package", ".git", "data", "thing.dist-info", "not-a-name"):
        (checkout / name).mkdir(parents=True)
        (checkout / name / "file").write_text("x")
    (checkout / "package/__init__.py").write_text("")
    for name in (".env", "secrets.json", "module.py", "fast.cpython-311-x86_64-linux-gnu.so"):
        (checkout / name).write_text("x = 1")
    pth = site_packages(environment) / "checkout.pth"
    pth.write_text(f"{checkout}\n")
    try:
        paths = read_only_paths(str(environment / "bin/python"))
    finally:
        pth.unlink()
    shown = {str(Path(p).relative_to(checkout)) for p in paths if Path(p).is_relative_to(checkout)}
    assert shown == {
        "package", "module.py", "fast.cpython-311-x86_64-linux-gnu.so", "thing.dist-info",
    }  # fmt: skip


def test_packages_that_an_import_hook_finds_elsewhere_are_shown(
    environment: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "src/thing"
    elsewhere.mkdir(parents=True)
    name = "__editable___thing_1_0_finder"
    (site_packages(environment) / f"{name}.py").write_text(
        f"MAPPING = {{'thing': {str(elsewhere)!r}}}"
    )
    pth = site_packages(environment) / "thing.pth"
    pth.write_text(f"import {name}\n")
    try:
        assert str(elsewhere) in read_only_paths(str(environment / "bin/python"))
    finally:
        pth.unlink()


def test_variables_of_ours_do_not_change_what_is_shown(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = str(environment / "bin/python")
    before = read_only_paths(python)
    (tmp_path / "module.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert read_only_paths(python) == before


def test_a_prefix_that_is_a_home_is_refused(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in (environment, environment / "deeper"):
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(EnvironmentRefused, match="make a virtual environment"):
            read_only_paths(str(environment / "bin/python"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho broken >&2\nexit 3\n", "broken"),
        ("#!/bin/sh\necho '[1'\n", "does not run"),
    ],
)
def test_what_is_no_interpreter_is_told_with_its_own_words(
    tmp_path: Path, text: str, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(text)
    python.chmod(0o755)
    with pytest.raises(EnvironmentRefused, match=said):
        read_only_paths(str(python))


def test_an_interpreter_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="does not run"):
        read_only_paths(str(tmp_path / "none"))


def test_the_sessions_directory_is_in_no_environment_and_no_environment_in_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "env/sessions").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "env")
    check_apart([str(tmp_path / "env/lib")], str(tmp_path / "env/sessions"))
    for shown in (tmp_path, tmp_path / "env", tmp_path / "link", tmp_path / "env/sessions/a"):
        with pytest.raises(EnvironmentRefused, match="may not lie in each other"):
            check_apart([str(shown)], str(tmp_path / "env/sessions"))


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="there is no /usr/bin/python3")
def test_the_systems_own_interpreter_needs_nothing_but_the_system() -> None:
    version = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", "import sys; print(sys.prefix)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = read_only_paths("/usr/bin/python3")
    assert covers(paths, version.stdout.strip())
    assert all(not path.startswith(("/home", "/root")) or sys.prefix in path for path in paths)
