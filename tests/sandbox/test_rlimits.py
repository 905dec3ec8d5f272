"""Limits of processes and uids, crossed from inside."""

from __future__ import annotations

from pathlib import Path

import attempts_limits
import pytest
from inside import found

MODULE = attempts_limits.__name__
needs_root = pytest.mark.needs("root")


def test_the_defaults_are_hard_limits_and_none_is_raised() -> None:
    before, after = found(MODULE, "default_limits")
    assert after["CORE"] == [min(1, before["CORE"][1] % 2**64)] * 2
    assert after["NOFILE"] == [1024, 1024]
    assert after["FSIZE"] == [2**30, 2**30]
    assert after["RTPRIO"] == after["NICE"] == [0, 0]
    for unlimited in ("NPROC", "AS"):  # not given: they stay as they were
        assert after[unlimited] == before[unlimited]
    for name, (soft, hard) in after.items():
        assert before[name][1] == -1 or (soft <= before[name][1] and hard <= before[name][1]), name


def test_each_limit_is_set_where_it_is_given() -> None:
    after = found(MODULE, "given_limits")
    expected = {
        "NOFILE": 100, "NPROC": 50, "FSIZE": 4096, "AS": 2**33, "MEMLOCK": 2**16, "SIGPENDING": 10,
        "MSGQUEUE": 0,
    }  # fmt: skip
    assert {name: after[name] for name in expected} == {
        name: [value, value] for name, value in expected.items()
    }


def test_a_limit_that_is_lower_already_is_not_raised() -> None:
    assert found(MODULE, "lower_ones_stay") == [50, 50]


def test_crossing_a_limit_fails_and_raising_it_too() -> None:
    outcomes = found(MODULE, "crossed")
    assert outcomes.pop("open files") == "EMFILE"
    assert outcomes.pop("file size") == "EFBIG"
    assert set(outcomes) == {"raise NOFILE", "raise FSIZE", "raise CORE"}
    assert {"not allowed" in message for message in outcomes.values()} == {True}


@needs_root
def test_a_uid_has_no_more_processes_than_its_limit() -> None:
    assert found(MODULE, "processes", 10) == [9, "EAGAIN"]


def test_a_crash_leaves_no_core_dump(tmp_path: Path) -> None:
    if not found(MODULE, "crash", False, str(tmp_path)):
        pytest.skip("this machine dumps no cores anyway")
    for core in tmp_path.iterdir():
        core.unlink()
    assert found(MODULE, "crash", True, str(tmp_path)) is False
    assert list(tmp_path.iterdir()) == []
