"""What a workspace without a hard bound takes of the disk."""

from __future__ import annotations

import os
from pathlib import Path

from replsvc_kernels.disk_usage import BLOCK, MAX_DEPTH, disk_usage

LARGE = 1 << 40


def test_blocks_are_counted_not_lengths(tmp_path: Path) -> None:
    (tmp_path / "written").write_bytes(bytes(100_000))
    os.sync()
    before = disk_usage(str(tmp_path), LARGE)
    assert 100_000 <= before < 100_000 + 2 * BLOCK
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "empty").touch()
    # Nothing is smaller than a block, so that many files without content are something, too.
    assert disk_usage(str(tmp_path), LARGE) == before + 2 * BLOCK


def test_a_file_with_two_names_counts_once_and_links_lead_nowhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "large").write_bytes(bytes(1 << 20))
    (inside / "one").write_bytes(bytes(1 << 16))
    os.sync()
    before = disk_usage(str(inside), LARGE)
    (inside / "two").hardlink_to(inside / "one")
    assert disk_usage(str(inside), LARGE) == before
    (inside / "file").symlink_to(outside / "large")
    (inside / "directory").symlink_to(outside)
    (inside / "itself").symlink_to(inside)
    assert disk_usage(str(inside), LARGE) == before + 3 * BLOCK
    assert disk_usage(str(inside / "directory"), LARGE) == 0


def test_a_walk_ends_where_it_has_seen_enough_or_is_too_deep(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert disk_usage(str(tmp_path), 10 * BLOCK) == 11 * BLOCK
    deep = tmp_path / "deep"
    deep.mkdir()
    place = deep
    for _ in range(2 * MAX_DEPTH):
        place /= "d"
        place.mkdir()
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of this process
    assert disk_usage(str(deep), LARGE) == MAX_DEPTH * BLOCK
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert disk_usage(str(tmp_path / "none"), LARGE) == 0
