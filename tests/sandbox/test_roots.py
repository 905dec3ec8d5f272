"""A session's file system: what it sees, what it can write, what is bounded."""

from __future__ import annotations

import os
from typing import Any

import attempts_roots
import pytest
from inside import Ended, ending, found
from marks import each_how
from sessions import FIRST, USER

from replsvc_kernels.sandbox import mounts

MODULE = attempts_roots.__name__
pytestmark = [pytest.mark.needs("userns"), pytest.mark.needs("mount")]
needs_root = pytest.mark.needs("root")
# With the calls of Linux 5.12, and without.
trees = pytest.mark.parametrize("trees", [True, False], ids=["trees", "remounts"])

READ_ONLY = "Read-only file system"
NOT_THERE = "No such file or directory"
NO_RIGHT = "Operation not permitted"
WRITABLE = {"/session/work", "/session/run", "/session/tmp", "/dev/shm", "/dev/pts"}
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}


@each_how
@trees
def test_every_mount_is_read_only_but_a_sessions_own_and_none_gives_rights(
    how: str, trees: bool
) -> None:
    found_flags: dict[str, int] = found(MODULE, "what_is_mounted", how, trees)
    assert found_flags.keys() >= WRITABLE | DEVICES | {"/", "/usr", "/session", "/session/proc"}
    assert "/session/all" not in found_flags

    def without(flag: int) -> set[str]:
        return {target for target, flags in found_flags.items() if not flags & flag}

    assert without(os.ST_RDONLY) == WRITABLE
    assert without(os.ST_NOSUID) == set()
    masks = {target for target in found_flags if target.startswith("/session/proc/")}
    assert without(os.ST_NODEV) - masks == DEVICES | {"/dev/pts"}
    assert WRITABLE & without(os.ST_NOEXEC) == {"/session/work", "/session/tmp"}


@each_how
@trees
def test_nothing_of_the_system_can_be_changed(how: str, trees: bool) -> None:
    outcomes = found(MODULE, "writing", how, trees)
    not_allowed = {
        name: outcome
        for name, outcome in outcomes.items()
        if outcome not in (READ_ONLY, NO_RIGHT, "Permission denied")
    }
    assert not_allowed == {}
    for name in ("/usr/x", "/session/x", "/session/etc/passwd", "/proc/sys", "oom score"):
        assert outcomes[name] in (READ_ONLY, "Permission denied")
    for name in ("remount", "attributes", "unmount", "mount", "pivot", "chroot", "mknod"):
        assert outcomes[name] == NO_RIGHT


@each_how
@trees
def test_neither_a_neighbour_nor_the_hosts_files_can_be_found(how: str, trees: bool) -> None:
    seen = found(MODULE, "reading", how, trees)
    assert {"neighbour", "sessions", "shadow", "home", "sys"} == {
        name for name, outcome in seen.items() if outcome == NOT_THERE
    }
    assert set(seen["upwards"]) >= {"session", "usr"}
    assert seen["var"] == ["tmp"]
    assert seen["tmp"] == []
    assert set(seen["dev"]) == {
        "null", "zero", "full", "random", "urandom",
        "fd", "stdin", "stdout", "stderr", "pts", "ptmx", "shm",
    }  # fmt: skip
    assert seen["devices"] == ["done", 8, "done"]
    assert set(seen["masked"].values()) == {"done"}
    assert len(seen["masked"]) >= 2
    assert seen["cpuinfo"]
    assert seen["users"] == 1


@each_how
@trees
def test_its_own_places_are_bounded_and_work_for_programs(how: str, trees: bool) -> None:
    seen, (owner, kept) = found(MODULE, "own_places", how, trees)
    full = "No space left on device"
    assert seen == {
        "run in work": "done",
        "run in tmp": "done",
        "run in shm": "Permission denied",
        "run in run": "Permission denied",
        "tmp": full,
        "shm": full,
        "tmp files": full,
        "shm files": full,
        "semaphore": "done",
        "terminal": "/dev/pts",
    }
    assert kept == "kept"
    # With a range of its own the user gets the file back when the session is over.
    assert owner == (FIRST + 1 if how == "root" else USER if os.geteuid() == 0 else os.geteuid())


@each_how
@trees
def test_an_environment_in_tmp_is_shown_in_the_sessions_own_tmp(how: str, trees: bool) -> None:
    assert found(MODULE, "in_tmp", trees, how) == {
        "through the link": "done",
        "directly": "a tool",
        "beside it": NOT_THERE,
        "write": READ_ONLY,
        # Where all are one user, the directories of its own /tmp are a session's own.
        "remove": NO_RIGHT if how != "single" else "done",
        "own file": "done",
    }


@needs_root
def test_as_root_an_environment_in_a_closed_home_is_readable_and_the_home_is_not() -> None:
    tool, secret, *beside = found(MODULE, "below_a_closed_directory", "root")
    assert (tool, secret, beside) == ("done", NOT_THERE, ["env"])


@needs_root
@trees
def test_what_is_shown_below_the_workspace_is_writable_only_where_asked(trees: bool) -> None:
    seen, outside = found(MODULE, "shown", trees, "data/set")
    assert seen == {
        "read": "the host's",
        "read the file": "a file of the host's",
        "write": READ_ONLY,
        "write the file": READ_ONLY,
        "write the other": "done",
        "parent is ours": True,
    }
    assert outside == ["file", "new"]


@needs_root
@pytest.mark.parametrize("target", ["..", "../tmp/x", "/etc", "."])
def test_nothing_is_shown_outside_of_the_workspace(target: str) -> None:
    result = ending(MODULE, "shown", True, target)
    assert isinstance(result, Ended)
    assert "does not lie below the workspace" in result.stderr


@each_how
def test_the_host_is_as_it_was_before(how: str) -> None:
    assert found(MODULE, "around_a_session", how) == [True]


def test_names_in_the_mount_table_are_read_as_they_are() -> None:
    line = r"36 35 98:0 /a\040b /c\011d\134e ro,nosuid,relatime shared:1 - cgroup cgroup rw,memory"
    one: Any = mounts.table(line)[0]
    assert (one.root, one.target, one.kind) == ("/a b", "/c\td\\e", "cgroup")
    assert one.options == ("rw", "memory")
