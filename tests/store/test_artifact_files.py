"""Artefacts' contents on disk: whole, bounded, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replsvc.store.artifacts import ArtifactFiles


@pytest.fixture
def files(tmp_path: Path) -> ArtifactFiles:
    return ArtifactFiles(tmp_path / "data")


def opened(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def test_a_file_is_kept_byte_by_byte(files: ArtifactFiles, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    source = opened(tmp_path / "a", content)
    assert files.keep("s", "c.0", source, len(content)) == len(content)
    os.close(source)
    assert files.path("s", "c.0").read_bytes() == content
    assert files.path("s", "c.0").stat().st_mode & 0o077 == 0


def test_one_byte_over_the_limit_leaves_nothing(files: ArtifactFiles, tmp_path: Path) -> None:
    source = opened(tmp_path / "a", b"12345")
    assert files.keep("s", "c.0", source, 4) is None
    os.close(source)
    with pytest.raises(FileNotFoundError):
        files.path("s", "c.0")


def test_a_source_without_an_end_is_bounded(files: ArtifactFiles) -> None:
    source = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
    assert files.keep("s", "c.0", source, 3_000_000) is None
    os.close(source)
    with pytest.raises(FileNotFoundError):
        files.path("s", "c.0")


def test_a_sparse_file_of_a_terabyte_is_not_read(files: ArtifactFiles, tmp_path: Path) -> None:
    source = opened(tmp_path / "a", b"")
    os.truncate(tmp_path / "a", 2**40)
    assert files.keep("s", "c.0", source, 2**30) is None
    os.close(source)


def test_what_can_not_be_written_is_an_error(files: ArtifactFiles, tmp_path: Path) -> None:
    source = opened(tmp_path / "a", b"12345")
    with pytest.raises(OSError, match=r"(?i)name too long"):
        files.keep("s", "x" * 300, source, 100)
    os.close(source)


def test_removing_a_sessions_leaves_its_neighbours(files: ArtifactFiles, tmp_path: Path) -> None:
    for session in ("s", "t"):
        source = opened(tmp_path / "a", b"1")
        files.keep(session, "c.0", source, 10)
        os.close(source)
    files.remove("s")
    files.remove("never")
    assert files.path("t", "c.0").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        files.path("s", "c.0")
