"""extensions.md rule 51: a path that an agent names is held to a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from replsvc import inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "sub").mkdir(parents=True)
    (made / "file.txt").write_text("here")
    (tmp_path / "secret.txt").write_text("not here")
    (tmp_path / "root-of-another").mkdir()
    return made


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("file.txt", "file.txt"),
        ("sub/../file.txt", "file.txt"),
        ("new/file.txt", "new/file.txt"),
        (".", "."),
        ("...", "..."),
        ("{root}/sub", "sub"),
        ("../root/file.txt", "file.txt"),
    ],
)
def test_what_is_beneath_is_found_whether_it_exists_or_not(root, named, found):
    assert inside(root, named.format(root=root)) == (root / found).resolve()
    assert inside(str(root), Path(named.format(root=root))) == (root / found).resolve()


@pytest.mark.parametrize(
    "named",
    [
        "..",
        "../secret.txt",
        "sub/../../secret.txt",
        "missing/../../secret.txt",
        "/etc/passwd",
        "{root}/../secret.txt",
        "../root-of-another",
        "out",
        "out/passwd",
        "to-secret",
        "sub/up/secret.txt",
        "dangling",
        "circle",
        "circle/file.txt",
        "nul\0",
        "x" * 300,
    ],
)
def test_what_leads_out_is_refused_by_whatever_way(root, named):
    (root / "out").symlink_to("/etc")
    (root / "to-secret").symlink_to("../secret.txt")
    (root / "sub" / "up").symlink_to("../..")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "circle").symlink_to("circle")
    with pytest.raises(ValueError, match=r"leads out of|NUL|can't be followed"):
        inside(root, named.format(root=root))


def test_links_that_stay_inside_are_followed_also_by_a_root_that_is_a_link(root, tmp_path):
    (root / "alias").symlink_to("sub")
    (tmp_path / "link").symlink_to("root")
    assert inside(tmp_path / "link", "alias/new") == root.resolve() / "sub" / "new"


def test_a_relative_root_is_relative_to_the_working_directory(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert inside("root", "file.txt") == root.resolve() / "file.txt"
    with pytest.raises(ValueError, match="leads out of"):
        inside("root", "secret.txt/../..")
