"""From inside its namespaces a session finds nothing of the host, and can't leave them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import attempts_roots
import pytest
from inside import Ended, ending, found
from marks import each_how

from replsvc_kernels.sandbox import namespaces

MODULE = attempts_roots.__name__
pytestmark = [pytest.mark.needs("userns"), pytest.mark.needs("mount")]
needs_root = pytest.mark.needs("root")

NO_RIGHT = "Operation not permitted"


@each_how
def test_nothing_of_the_host_is_found_from_inside(how: str) -> None:
    seen = found(MODULE, "surroundings", how)
    assert seen.pop("pids") == [seen.pop("own pid")]
    assert seen.pop("interfaces") == ["lo"]
    assert seen.pop("own loopback") == "done"
    assert seen.pop("name") == "session"
    assert seen.pop("groups") is True
    # Of another user it is not to be signalled; of the same one the kernel spares every pid 1.
    assert seen.pop("signal init") == (NO_RIGHT if how != "single" else "done")
    assert seen == {
        "signal the host's": "No such process",
        "init's root": "No such file or directory",
        "connect to the host": "Connection refused",
        "its abstract socket": "Connection refused",
        "a datagram out": "Network is unreachable",
        "its shared memory": "No such file or directory",
        "rename": NO_RIGHT,
        "unshare pids": NO_RIGHT,
        "setuid": "Invalid argument" if how == "single" else NO_RIGHT,
        "map ids": "Read-only file system",
    }


def test_a_process_with_threads_is_refused() -> None:
    assert "this has 2" in found(MODULE, "threads")


@needs_root
def test_maps_that_the_kernel_refuses_are_told_and_leave_no_helper_behind() -> None:
    result = found(MODULE, "failing_maps")
    assert result == {"said": NO_RIGHT, "children": 0, "descriptors": 3}


@each_how
def test_entering_leaves_no_descriptor_open(how: str) -> None:
    before, after = found(MODULE, "descriptors_after_entering", how)
    assert before == after


# Maps


def test_an_id_of_the_namespace_is_found_outside() -> None:
    maps = namespaces.maps_for_root(300_000, 10)
    assert maps.server == 0
    assert list(maps.sessions) == list(range(1000, 1010))
    assert [maps.outside(one) for one in (0, 1000, 1009)] == [
        (300_000, 300_000), (300_001, 300_001), (300_010, 300_010),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="1010 is not mapped"):
        maps.outside(1010)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 10), (-5, 10), (1000, 0), (1000, 60_001), (0xFFFF_FFFE, 10)]
)
def test_a_range_that_the_host_has_not_is_refused(first: int, count: int) -> None:
    with pytest.raises(ValueError, match="can be mapped"):
        namespaces.maps_for_root(first, count)


def test_the_largest_subordinate_range_of_our_user_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path
    for name in ("newuidmap", "newgidmap"):
        (path / name).write_text("#!/bin/sh\n")
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    name = pwd.getpwuid(os.getuid()).pw_name
    users, groups = path / "subuid", path / "subgid"
    users.write_text(f"other:5:99999\n{name}:100:10\n\nnonsense\n{name}:x:9\n{name}:200000:500\n")
    groups.write_text(f"{os.getuid()}:300000:400\n")
    maps = namespaces.maps_from_subordinate_ids(str(users), str(groups))
    assert maps.outside(0) == (os.getuid(), os.getgid())
    assert maps.outside(1000) == (200_000, 300_000)
    assert len(maps.sessions) == 400
    groups.write_text("other:1:2\n")
    with pytest.raises(LookupError, match="has no line for"):
        namespaces.maps_from_subordinate_ids(str(users), str(groups))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LookupError, match="no program newuidmap"):
        namespaces.maps_from_subordinate_ids(str(users), str(groups))


def test_this_process_was_never_in_any_of_it() -> None:
    # The attempts run elsewhere: a test process in a user namespace would skip half of the suite.
    for kind in ("user", "mnt", "pid_for_children", "net"):
        own, parent = (Path(f"/proc/{pid}/ns/{kind}").readlink() for pid in ("self", os.getppid()))
        assert own == parent


def test_a_failing_attempt_is_seen() -> None:
    assert isinstance(ending(MODULE, "no_such_attempt"), Ended)
