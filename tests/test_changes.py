"""What has changed in a workspace, whatever was put there."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replsvc import changes
from replsvc.changes import Notices, Workspace, open_file


@pytest.fixture
def notices() -> Iterator[Notices]:
    notices = Notices()
    yield notices
    notices.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def workspace(root: Path, notices: Notices) -> Workspace:
    workspace = Workspace(root, notices)
    assert workspace.prime()
    return workspace


def changed(workspace: Workspace) -> list[str]:
    workspace.unchanged()
    return [path for path, _ in workspace.look().files]


def test_nothing_happened_and_no_walk_is_needed(workspace: Workspace) -> None:
    assert workspace.unchanged()


def test_new_changed_renamed_and_deeper_files_are_found(root: Path, workspace: Workspace) -> None:
    (root / "a").write_text("1")
    (root / "d/e").mkdir(parents=True)
    (root / "d/e/f").write_text("1")
    assert not workspace.unchanged()
    assert workspace.look().files == (("a", 1), ("d/e/f", 1))
    assert workspace.unchanged()
    (root / "d/e/f").write_text("12")
    (root / "a").rename(root / "b")
    assert changed(workspace) == ["b", "d/e/f"]


def test_a_file_written_twice_at_once_counts_each_time(root: Path, workspace: Workspace) -> None:
    for _ in range(20):
        (root / "a").write_text("1")
        assert changed(workspace) == ["a"]


def test_a_file_that_stays_open_is_found_at_each_write(root: Path, workspace: Workspace) -> None:
    with (root / "log").open("w") as file:
        for line in ("one", "two"):
            file.write(line)
            file.flush()
            assert changed(workspace) == ["log"]


def test_deleting_is_no_change_to_list(root: Path, workspace: Workspace) -> None:
    (root / "a").write_text("1")
    workspace.look()
    (root / "a").unlink()
    assert not workspace.unchanged()
    assert changed(workspace) == []


def test_what_programs_keep_for_themselves_is_no_result(root: Path, workspace: Workspace) -> None:
    for directory in (".cache", "__pycache__", "d/.git"):
        (root / directory).mkdir(parents=True)
        (root / directory / "x").write_text("1")
    assert changed(workspace) == []
    (root / ".cache/y").write_text("1")
    (root / ".z").write_text("1")
    assert workspace.unchanged()


def test_links_pipes_and_sockets_are_no_files(root: Path, workspace: Workspace) -> None:
    outside = root.parent / "secrets"
    outside.mkdir()
    (outside / "key").write_text("k")
    (root / "to_file").symlink_to(outside / "key")
    (root / "to_directory").symlink_to(outside)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "socket"))
        (root / "real").write_text("1")
        assert changed(workspace) == ["real"]


def test_names_of_any_bytes_are_found(root: Path, workspace: Workspace) -> None:
    names = [b"\xff\xfe", "é\n\x01".encode(), b"a b", b"x" * 255]
    for name in names:
        (root / os.fsdecode(name)).write_text("1")
    assert {os.fsencode(path) for path in changed(workspace)} == set(names)


def test_more_than_is_looked_at_is_said(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_ENTRIES", 10)
    for number in range(20):
        (root / str(number)).write_text("1")
    found = workspace.look()
    assert found.more
    assert len(found.files) == 10


def test_a_tree_too_deep_is_left_out_and_said(root: Path, workspace: Workspace) -> None:
    deep = root.joinpath(*["d"] * (changes.MAX_DEPTH + 5))
    deep.mkdir(parents=True)
    (deep / "x").write_text("1")
    (root / "shallow").write_text("1")
    found = workspace.look()
    assert found.more
    assert [path for path, _ in found.files] == ["shallow"]


def test_priming_that_finds_too_much_is_undone(root: Path, notices: Notices) -> None:
    for number in range(20):
        (root / str(number)).write_text("1")
    workspace = Workspace(root, notices)
    assert not workspace.prime(10)
    assert workspace.prime()
    assert workspace.unchanged()


def test_without_notices_every_look_is_a_walk(root: Path) -> None:
    closed = Notices()
    closed.close()
    workspace = Workspace(root, closed)
    workspace.prime()
    assert not workspace.unchanged()
    (root / "a").write_text("1")
    assert changed(workspace) == ["a"]


def test_more_directories_than_can_be_watched_are_walked(
    root: Path, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MAX_WATCHES", 2)
    for name in "abc":
        (root / name).mkdir()
    workspace = Workspace(root, notices)
    workspace.prime()
    for name in "abc":
        (root / name / "x").write_text("1")
    assert not workspace.unchanged()
    assert changed(workspace) == ["a/x", "b/x", "c/x"]


def test_notices_lost_in_a_flood_make_every_workspace_walk(
    tmp_path: Path, notices: Notices
) -> None:
    quiet, loud = (Workspace(tmp_path / name, notices) for name in ("quiet", "loud"))
    for workspace in (quiet, loud):
        workspace.root.mkdir()
        workspace.prime()
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most // 3 + 100):  # each is created, written and closed
        (loud.root / str(number % 100)).unlink(missing_ok=True)
        (loud.root / str(number % 100)).write_text("1")
    (quiet.root / "a").write_text("1")
    assert not quiet.unchanged()
    assert changed(quiet) == ["a"]


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "", ".", "d/", "d/.", "no"])
def test_only_files_below_the_root_can_be_opened(root: Path, path: str) -> None:
    (root / "d").mkdir()
    (root.parent / "x").write_text("1")
    with pytest.raises(OSError):  # noqa: PT011 - which one says nothing more
        open_file(root, path)


def test_no_part_of_a_path_may_be_a_link_or_a_pipe(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real/file").write_text("1")
    (root / "link").symlink_to("real")
    (root / "real/linked").symlink_to("file")
    os.mkfifo(root / "pipe")
    os.close(open_file(root, "real/file"))
    for path in ("link/file", "real/linked", "pipe", "real"):
        with pytest.raises(OSError):  # noqa: PT011 - see above
            open_file(root, path)


def test_looking_leaves_no_descriptor_open(root: Path, workspace: Workspace) -> None:
    (root / "a/b/c").mkdir(parents=True)
    (root / "a/b/c/x").write_text("1")
    before = len(list(Path("/proc/self/fd").iterdir()))
    workspace.look()
    workspace.forget()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
