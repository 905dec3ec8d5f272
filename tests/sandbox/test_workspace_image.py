"""A workspace has its size, and is gone with whoever had it open."""

from __future__ import annotations

from pathlib import Path

import attempts_workspace
import pytest
from inside import found

from replsvc_kernels.sandbox.workspace_image import SMALLEST, WorkspaceImages

MODULE = attempts_workspace.__name__
needs_loop = pytest.mark.needs("loop")


@needs_loop
@pytest.mark.needs("userns")
def test_a_session_cannot_write_more_than_its_size_in_bytes_or_files() -> None:
    seen = found(MODULE, "attacks")
    assert 0 < seen.pop("bytes") <= attempts_workspace.SIZE
    full = "No space left on device"
    assert seen == {
        "owner": True,
        "empty": [],
        "fill": full,
        "a terabyte": full,
        "files": full,
        "again": "done",
        "seen outside": ["many-0"],
        "neighbour has room": True,
        "names on the disk": [],
        "devices": 2,
        "devices afterwards": 0,
    }


@needs_loop
def test_nothing_is_left_of_it_when_its_owner_is_killed() -> None:
    assert found(MODULE, "owner_killed") == [1, 0, []]


@pytest.mark.needs("root")
def test_a_missing_program_is_told() -> None:
    assert found(MODULE, "without_the_program") == ["No such file or directory"]


def test_a_size_that_no_file_system_fits_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"at least {SMALLEST} bytes"):
        WorkspaceImages(str(tmp_path)).make(SMALLEST - 1, 1, 1)
    assert list(tmp_path.iterdir()) == []
