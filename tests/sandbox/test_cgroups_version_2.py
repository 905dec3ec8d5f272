"""Version 2 of control groups, on a tree of files like the kernel's and on the real one.

Where the controllers are bound to version 1 nothing else can show what is written to which file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replsvc_kernels.sandbox import _cgroup_files
from replsvc_kernels.sandbox._hierarchies import hierarchies
from replsvc_kernels.sandbox.cgroups import CgroupRoot, CgroupsUnavailableError, Limits, Usage

MB = 1 << 20
CONTROLLERS = "cpuset cpu io memory hugetlb pids"


class Tree:
    """A directory in which a new directory has the files that the kernel would put there."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.refuse: dict[str, OSError] = {}
        self._make, self._remove, self._write = os.mkdir, os.rmdir, _cgroup_files.write
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(os, "rmdir", self.rmdir)
        monkeypatch.setattr(_cgroup_files, "write", self.write)
        self.files(top, CONTROLLERS)

    def files(self, path: Path, controllers: str) -> None:
        texts = {"cgroup.controllers": controllers, "cgroup.subtree_control": "",
                 "cgroup.procs": "", "cgroup.kill": "", "cpu.stat": "usage_usec 0\n"}  # fmt: skip
        if path != self.top:
            texts["cgroup.type"] = "domain"
        if "memory" in controllers:
            texts |= {"memory.max": "max", "memory.swap.max": "max", "memory.current": "0",
                      "memory.peak": "0", "memory.events": "oom 0\noom_kill 0\n"}  # fmt: skip
        if "pids" in controllers:
            texts |= {"pids.max": "max", "pids.current": "0", "pids.events": "max 0\n"}
        if "cpu" in controllers:
            texts |= {"cpu.max": "max 100000", "cpu.weight": "100"}
        for name, text in texts.items():
            (path / name).write_text(text)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._make(path, mode)
        if Path(path).is_relative_to(self.top):
            parent = Path(path).parent
            self.files(Path(path), (parent / "cgroup.subtree_control").read_text())

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        if Path(path).is_relative_to(self.top):
            for one in Path(path).iterdir():
                if one.is_file():
                    one.unlink()
        self._remove(path)

    def write(self, path: str, text: str) -> None:
        file = Path(path)
        if (error := self.refuse.get(file.name)) is not None:
            raise OSError(error.errno, f"{path}: {error.strerror}")
        if file.name == "cgroup.subtree_control":
            words = set(file.read_text().split())
            words = words | {text[1:]} if text[0] == "+" else words - {text[1:]}
            text = " ".join(sorted(words))
        elif file.name == "cgroup.procs":
            for other in self.top.rglob("cgroup.procs"):
                other.write_text(other.read_text().replace(f"{text}\n", ""))
            text = file.read_text() + f"{text}\n"
        elif file.name == "cgroup.kill":
            (file.parent / "cgroup.procs").write_text("")
        file.write_text(text)

    def detect(self, own: str) -> CgroupRoot:
        mountinfo = f"30 1 0:26 / {self.top} rw,nosuid - cgroup2 cgroup2 rw"
        return CgroupRoot.detect("replsvc-test", mountinfo, f"0::{own}\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def unit(tree: Tree, *, pids: str = "") -> Path:
    """A unit that has all controllers, with processes in it."""
    (tree.top / "cgroup.subtree_control").write_text(CONTROLLERS)
    path = tree.top / "unit.scope"
    os.mkdir(path)
    (path / "cgroup.procs").write_text(pids)
    return path


def test_limits_are_written_without_swap_and_read_back_as_usage_and_events(tree: Tree) -> None:
    root = tree.detect("/")
    assert root.controllers == {"memory", "cpu", "pids"}
    assert root.missing == {}
    cgroup = root.create("a", Limits(64 * MB, 10, 1.5, 50))
    path = Path(cgroup.paths[0])
    assert path.parent == Path(root.paths[0])
    texts = {name: (path / name).read_text() for name in
             ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight")}  # fmt: skip
    assert texts == {
        "memory.max": str(64 * MB),
        "memory.swap.max": "0",
        "pids.max": "10",
        "cpu.max": "150000 100000",
        "cpu.weight": "50",
    }
    (path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (path / "memory.peak").write_text("67108864\n")
    (path / "memory.current").write_text("5\n")
    (path / "pids.events").write_text("max 7\n")
    (path / "pids.current").write_text("3\n")
    (path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert cgroup.usage() == Usage(5, 64 * MB, 2.5, 3, None)
    events = cgroup.events()
    assert (events.oom_kills, events.memory_limit_bytes, events.memory_peak_bytes) == (
        2, 64 * MB, 64 * MB,
    )  # fmt: skip
    assert (events.processes_refused, events.processes_limit) == (7, 10)
    cgroup.remove()
    assert not path.exists()
    root.close()
    assert not path.parent.exists()


def test_nothing_is_limited_that_was_not_asked_for(tree: Tree) -> None:
    root = tree.detect("/")
    path = Path(root.create("a", Limits()).paths[0])
    assert (path / "memory.max").read_text() == "max"
    assert (path / "pids.max").read_text() == "max"
    assert (path / "cpu.max").read_text() == "max 100000"


def test_a_delegated_unit_is_emptied_into_a_leaf_and_given_back(tree: Tree) -> None:
    path = unit(tree, pids=f"{os.getpid()}\n")
    root = tree.detect("/unit.scope")
    assert Path(root.paths[0]).parent == path
    assert (path / "cgroup.procs").read_text() == ""
    assert (path / "coordinator/cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert set((path / "cgroup.subtree_control").read_text().split()) == {"memory", "cpu", "pids"}
    root.close()
    assert (path / "cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert (path / "cgroup.subtree_control").read_text() == ""
    assert not (path / "coordinator").exists()


def test_a_second_look_from_the_leaf_finds_the_unit_again(tree: Tree) -> None:
    path = unit(tree, pids=f"{os.getpid()}\n")
    first = tree.detect("/unit.scope")
    second = tree.detect("/unit.scope/coordinator")
    assert Path(second.paths[0]).parent == path
    assert (path / "coordinator/cgroup.procs").read_text() == f"{os.getpid()}\n"
    assert second.sweep() == []
    second.close()
    assert Path(first.paths[0]).exists()


def test_a_unit_with_others_in_it_is_left_alone(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unit(tree, pids=f"{os.getpid()}\n1\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    root = tree.detect("/unit.scope")
    # Root goes to the top instead.
    assert Path(root.paths[0]).parent == tree.top
    assert (path / "cgroup.procs").read_text() == f"{os.getpid()}\n1\n"
    root.close()


def test_without_the_right_to_enable_them_the_reason_and_a_remedy_are_told(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unit(tree, pids=f"{os.getpid()}\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    tree.refuse["cgroup.subtree_control"] = PermissionError(13, "Permission denied")
    with pytest.raises(CgroupsUnavailableError, match="Delegate=yes") as caught:
        tree.detect("/unit.scope")
    assert "cgroup.subtree_control: " in caught.value.missing["memory"]
    # What was moved to try it is back.
    assert (path / "coordinator").exists() is False


def test_a_controller_that_is_not_delegated_is_named(tree: Tree) -> None:
    (tree.top / "cgroup.controllers").write_text("memory pids")
    root = tree.detect("/")
    assert root.controllers == {"memory", "pids"}
    assert root.missing == {"cpu": "no hierarchy with it is mounted"}
    root.create("a", Limits(64 * MB, 10, 1.0, 50)).remove()
    root.close()


# Where things are mounted


def test_in_a_container_that_sees_a_part_of_the_tree_its_top_is_ours() -> None:
    mountinfo = "30 1 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw"
    assert [one.own for one in hierarchies(mountinfo, "0::/docker/abc/x\n")] == ["/sys/fs/cgroup/x"]
    assert [one.own for one in hierarchies(mountinfo, "0::/other\n")] == ["/sys/fs/cgroup"]


def test_both_versions_at_once_are_told_apart() -> None:
    mountinfo = (
        "41 31 0:38 / /c/unified rw - cgroup2 cgroup2 rw\n"
        "32 31 0:29 / /c/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 / /c/memory rw - cgroup cgroup rw,memory\n"
        "40 31 0:37 / /c/systemd rw - cgroup cgroup rw,name=systemd\n"
        "31 23 0:28 / /c rw - tmpfs tmpfs rw\n"
    )
    own = "9:name=systemd:/s\n4:memory:/m/x\n2:cpu,cpuacct:/\n0::/u\n"
    found = {
        (one.version, one.own, *sorted(one.controllers)) for one in hierarchies(mountinfo, own)
    }
    assert found == {
        (2, "/c/unified/u"),
        (1, "/c/cpu,cpuacct", "cpu", "cpuacct"),
        (1, "/c/memory/m/x", "memory"),
    }


def test_no_hierarchy_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(CgroupsUnavailableError) as caught:
        CgroupRoot.detect("replsvc-test", "", "")
    assert set(caught.value.missing) == {"memory", "cpu", "pids"}


@pytest.mark.parametrize("prefix", ["", "../x", "a/b"])
def test_a_prefix_that_is_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="name of a control group"):
        CgroupRoot.detect(prefix)
