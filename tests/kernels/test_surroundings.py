"""The environment of kernels that run on this machine."""

from __future__ import annotations

from pathlib import Path

from replsvc_kernels.backends.surroundings import MAX_TMPDIR_BYTES, kernel_environment
from replsvc_kernels.kernel import LaunchSpec


def test_temporary_files_go_to_the_workspace(tmp_path: Path) -> None:
    environment = kernel_environment(LaunchSpec("/short/work"), "/usr/bin/python3", str(tmp_path))
    assert environment["TMPDIR"] == environment["HOME"] == "/short/work"
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_with_a_long_path_has_a_short_name_for_temporary_files(tmp_path: Path) -> None:
    workspace = tmp_path / ("d" * MAX_TMPDIR_BYTES) / "work"
    workspace.mkdir(parents=True)
    directory = tmp_path / "k"
    directory.mkdir()
    environment = kernel_environment(LaunchSpec(str(workspace)), "/usr/bin/python3", str(directory))
    assert environment["HOME"] == str(workspace)
    assert environment["TMPDIR"] == str(directory / "tmp")
    assert Path(environment["TMPDIR"]).resolve() == workspace
