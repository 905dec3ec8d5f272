"""A group holds whoever is in it to its limits, and says which was hit; nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attempts_cgroups
import pytest
from inside import found

from replsvc_kernels.sandbox.cgroups import CgroupRoot, Limits

MODULE = attempts_cgroups.__name__
pytestmark = pytest.mark.needs("cgroups")
needs_userns = pytest.mark.needs("userns")
MB = 1 << 20
# With version 2's cgroup.kill, where it is mounted, and process by process.
ways_to_end = pytest.mark.parametrize(
    "at_once", [True, pytest.param(False, marks=pytest.mark.needs("cgroups_1"))]
)


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    yield
    left = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"{attempts_cgroups.PREFIX}-*")]
    assert left == []


@ways_to_end
def test_a_fork_bomb_meets_its_limit_and_the_neighbour_forks_on(at_once: bool) -> None:
    seen = found(MODULE, "fork_bomb", at_once)
    peak = seen.pop("peak")
    assert peak in (20, None)  # older kernels count no peak
    assert seen == {
        "outcome": "Resource temporarily unavailable",
        "neighbour": "well",
        "neighbour refused": 0,
        "refused": True,
        "limit": 20,
    }


def test_memory_beyond_the_limit_ends_the_offender_alone_with_limit_and_peak() -> None:
    seen = found(MODULE, "memory")
    assert seen["ended by"] == -9
    assert seen["oom_kills"] == 1
    assert seen["limit"] == 48 * MB
    assert 40 * MB <= seen["peak"] <= 48 * MB
    assert seen["neighbour"] == [0, 0]


def test_what_is_written_to_memory_file_systems_counts() -> None:
    assert found(MODULE, "shared_memory_is_counted") == [-9, True]


def test_a_busy_loop_is_held_back_and_counted() -> None:
    assert found(MODULE, "cpu") == [True, True]


@needs_userns
def test_a_process_without_any_right_joins_by_descriptor_and_sees_no_path() -> None:
    refused, seen, processes = found(MODULE, "joined_from_a_user_namespace")
    assert refused == "Permission denied"
    assert seen in (["/"], [])  # version 2 has no line of its own for pids
    assert processes == 1


@ways_to_end
def test_a_fork_bomb_that_nobody_stopped_before_ends_with_its_group(at_once: bool) -> None:
    assert found(MODULE, "bomb_removed", at_once) == ["", []]


@ways_to_end
def test_removing_a_group_ends_all_that_is_in_it_first(at_once: bool) -> None:
    busy, over, ended, there = found(MODULE, "killed", at_once)
    assert (busy, over, ended, there) == ("Device or resource busy", "", -9, [])


def test_what_a_killed_owner_left_is_swept_and_what_a_living_one_has_is_not() -> None:
    assert found(MODULE, "owner_killed") == [[], True, ""]


def test_groups_come_and_go_without_a_trace() -> None:
    assert found(MODULE, "churn", 50) == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-x", "a\n", "x" * 101, "ä"])
def test_a_name_that_is_not_one_directory_is_refused(name: str) -> None:
    root = CgroupRoot.detect(prefix=attempts_cgroups.PREFIX)
    try:
        with pytest.raises(ValueError, match="name of a control group"):
            root.create(name, Limits())
    finally:
        root.close()


def test_a_group_that_cannot_be_limited_is_not_left_half_made() -> None:
    root = CgroupRoot.detect(prefix=attempts_cgroups.PREFIX)
    try:
        with pytest.raises(OSError, match=r"pids.max"):
            root.create("x", Limits(processes=-5))
        for path in root.paths:
            assert not Path(f"{path}/s-x").exists()
        root.create("x", Limits(processes=5)).remove()
    finally:
        root.close()
    root.close()
    assert root.controllers == frozenset()
