"""Whatever a session made of its workspace, it can be removed."""

from __future__ import annotations

import os
from pathlib import Path

import attempts_removal
import pytest
from inside import found

from replsvc_kernels.sandbox import removal

MODULE = attempts_removal.__name__


def deep(place: Path, levels: int) -> None:
    """Directories in each other; no path is long enough to name the last one."""
    here = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


def test_a_tree_deeper_than_any_path_or_stack_is_removed(tmp_path: Path) -> None:
    deep(tmp_path, 3_000)
    descriptors = len(os.listdir("/proc/self/fd"))
    removal.remove(str(tmp_path))
    assert not tmp_path.exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_wide_tree_with_links_and_pipes_is_removed_and_nothing_it_links_to(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    place = tmp_path / "place"
    for number in range(50):
        inner = place / "a" / str(number) / "b"
        inner.mkdir(parents=True)
        (inner / "link").symlink_to(kept)
        os.link(kept / "file", inner / "hard")
        os.mkfifo(inner / "pipe")
    (place / "loop").symlink_to(place)
    removal.remove(str(place))
    assert not place.exists()
    assert (kept / "file").read_text() == "kept"
    removal.remove(str(place))  # what is not there is removed


def test_a_link_is_not_followed_to_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match="link"):
        removal.remove(str(tmp_path / "link"))
    assert (tmp_path / "there").exists()


def test_directories_whose_owner_took_all_rights_away_are_removed() -> None:
    assert found(MODULE, "without_rights") == "gone"


@pytest.mark.needs("userns", "root", "newuidmap")
def test_what_belongs_to_a_session_of_a_range_is_removed_by_its_user() -> None:
    assert found(MODULE, "of_a_sessions_user") == ["Permission denied", "gone"]


@pytest.mark.needs("root")
def test_what_can_not_be_removed_is_said_and_all_else_is_gone() -> None:
    assert found(MODULE, "of_somebody_else") == ["Permission denied", ["theirs"]]
