"""Landlock: paths, abstract sockets, signals and TCP, tried from inside."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import attempts_landlock
import pytest
from inside import found

from replsvc_kernels.sandbox import landlock

MODULE = attempts_landlock.__name__
needs_landlock = pytest.mark.needs("landlock")


@pytest.fixture
def place(tmp_path: Path) -> str:
    for name in ("mine", "shared", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    true = shutil.which("true")
    assert true is not None
    for name in ("shared", "hidden"):
        shutil.copy(true, tmp_path / name / "true")
    return str(tmp_path)


def needs_abi(least: int) -> None:
    if landlock.supported() < least:
        pytest.skip(f"needs landlock: this kernel's ABI is {landlock.supported()}, not {least}")


@needs_landlock
def test_only_what_is_ruled_can_be_opened_and_only_as_ruled(place: str) -> None:
    needs_abi(3)
    outcomes = found(MODULE, "files", place)
    allowed = {
        "read mine", "write mine", "make a directory", "make a fifo", "move between mine",
        "truncate mine", "remove mine", "read shared", "list shared", "run shared",
        "read what was open",
    }  # fmt: skip
    assert {name for name, result in outcomes.items() if result == "done"} == allowed
    denied = {result for name, result in outcomes.items() if name not in allowed}
    assert denied <= {"EACCES", "EXDEV"}


@needs_landlock
def test_a_rule_follows_the_directory_not_its_name(place: str) -> None:
    assert found(MODULE, "replaced", place) == {
        "by its new name": "done",
        "another by its old name": "EACCES",
    }


@needs_landlock
def test_outsiders_get_neither_connections_nor_signals(place: str) -> None:
    needs_abi(6)
    assert found(MODULE, "outsiders") == {
        "connect before": "done",
        "signal before": "done",
        "connect after": "EPERM",
        "signal after": "EPERM",
        "signal own child": "done",
    }


@needs_landlock
@pytest.mark.parametrize(
    ("allowed", "outcome"), [(True, ("done", "ECONNREFUSED")), (False, ("EACCES", "EACCES"))]
)
def test_tcp_is_left_alone_or_refused(allowed: bool, outcome: tuple[str, str]) -> None:
    needs_abi(4)
    assert tuple(found(MODULE, "tcp", allowed).values()) == outcome


@needs_landlock
def test_a_terminal_of_ours_stays_one() -> None:
    assert found(MODULE, "terminal") is True


@needs_landlock
def test_no_privileges_can_be_gained_behind_it() -> None:
    assert "NoNewPrivs:\t1" in found(MODULE, "status")


@needs_landlock
def test_a_path_that_is_missing_is_an_error_and_nothing_is_restricted(place: str) -> None:
    assert found(MODULE, "a_missing_path", place) == ["ENOENT", "done"]


@needs_landlock
def test_a_second_layer_gives_nothing_back(place: str) -> None:
    assert found(MODULE, "second_layer", place) == {"mine": "done", "shared": "EACCES"}


@pytest.mark.needs("seccomp")
@pytest.mark.parametrize("answer", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_a_kernel_without_it_restricts_nothing_and_says_so(place: str, answer: int) -> None:
    assert found(MODULE, "no_landlock_in_this_kernel", answer, place) == [0, "done"]


@pytest.mark.parametrize("abi", range(1, 12))
def test_a_later_abi_forbids_whatever_an_earlier_one_did(abi: int) -> None:
    before, now = landlock.rights(abi - 1), landlock.rights(abi)
    for field in ("files", "tcp", "scopes"):
        assert getattr(before, field) & ~getattr(now, field) == 0


def test_each_abi_brought_what_the_kernel_says_it_brought() -> None:
    assert landlock.rights(0) == landlock.Rights(0, 0, 0)
    assert [landlock.rights(abi).files.bit_length() for abi in range(1, 8)] == [
        13, 14, 15, 15, 16, 16, 16
    ]  # fmt: skip
    assert [landlock.rights(abi).tcp for abi in range(1, 8)] == [0, 0, 0, 3, 3, 3, 3]
    assert [landlock.rights(abi).scopes for abi in range(1, 8)] == [0, 0, 0, 0, 0, 3, 3]


@needs_landlock
def test_this_kernel_knows_every_right_of_its_abi_and_none_of_the_next() -> None:
    abi = landlock.supported()
    for known in range(1, abi + 1):
        assert attempts_landlock.knows(landlock.rights(known)) == "done"
    if abi < 6:
        assert attempts_landlock.knows(landlock.rights(6)) == "EINVAL"
