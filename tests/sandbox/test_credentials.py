"""A session has no rights, and no way to any; read from /proc/self/status afterwards."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import attempts_credentials
import pytest
from inside import found

MODULE = attempts_credentials.__name__
UID, GID = 54321, 54322
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
needs_root = pytest.mark.needs("root")
needs_userns = pytest.mark.needs("userns")


def assert_no_rights(status: dict[str, str], uid: int, gid: int) -> None:
    assert status["Uid"].split() == [str(uid)] * 4
    assert status["Gid"].split() == [str(gid)] * 4
    assert {name: int(status[name], 16) for name in SETS} == dict.fromkeys(SETS, 0)
    assert status["NoNewPrivs"] == "1"


@needs_root
def test_root_becomes_a_uid_without_groups_capabilities_or_the_operators_keyring() -> None:
    after: dict[str, Any] = found(MODULE, "dropped", UID, GID)
    assert after["result"] == {"kept_groups": [], "own_keyring": True}
    assert_no_rights(after["status"], UID, GID)
    assert after["status"]["Groups"] == ""
    assert after["keyring is another"]
    assert after["ambient"] == 0
    assert after["securebits"] & 0xEB == 0xEB
    assert after["dumpable"] == 1


@needs_root
def test_there_is_no_way_back(tmp_path: Path) -> None:
    program = tmp_path / "id"
    shutil.copy(shutil.which("id") or "/usr/bin/id", program)
    program.chmod(0o4755)
    private = tmp_path / "private"
    private.write_text("root's")
    private.chmod(0o600)
    outcomes = found(MODULE, "ways_back", UID, GID, str(program), str(private))
    # Where the mount allows it at all, the program had root before.
    assert outcomes.pop("set-user-ID program before") in ("0", str(UID))
    assert outcomes.pop("set-user-ID program") == str(UID)
    assert outcomes.pop("undo no_new_privs") == "EINVAL"
    assert outcomes.pop("read root's") == "EACCES"
    assert {name for name, outcome in outcomes.items() if outcome != "EPERM"} == set()


@needs_root
def test_a_session_reads_its_own_entries_in_proc() -> None:
    assert set(found(MODULE, "own_entries", UID, GID).values()) == {"done"}


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_is_the_one_that_was_given(umask: int) -> None:
    assert found(MODULE, "umask", UID, GID, umask) == umask


@needs_userns
def test_a_namespace_of_one_uid_leaves_no_rights_in_it() -> None:
    after: dict[str, Any] = found(MODULE, "single_uid", False)
    assert int(after["before"]["CapEff"], 16) != 0
    assert_no_rights(after["status"], 1000, 1000)
    assert after["result"]["kept_groups"] == []


@needs_root
@needs_userns
def test_groups_that_cannot_be_left_are_told_or_refused() -> None:
    after = found(MODULE, "single_uid", True)
    assert after["refused"] == "EPERM"
    assert after["result"]["kept_groups"] == [65534]
    assert_no_rights(after["status"], 1000, 1000)


def test_an_unprivileged_process_keeps_its_uid_and_gains_nothing() -> None:
    after: dict[str, Any] = found(MODULE, "unprivileged")
    status = after["status"]
    assert status["Uid"].split() == [str(after["uid"])] * 4
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_without_rights_there_is_no_becoming_somebody_else() -> None:
    assert found(MODULE, "another_uid_without_rights") == "EPERM"


@pytest.mark.needs("seccomp")
@pytest.mark.parametrize("answer", [errno.ENOSYS, errno.EPERM, errno.EDQUOT])
def test_a_keyring_that_cannot_be_had_is_told(answer: int) -> None:
    assert found(MODULE, "no_keyring", answer)["own_keyring"] is False
