"""Nothing is inherited that was not given."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import attempts_limits
import pytest
from inside import HERE, found

MODULE = attempts_limits.__name__
OLD_KERNELS = [
    0,
    pytest.param(errno.ENOSYS, marks=pytest.mark.needs("seccomp")),
    pytest.param(errno.EPERM, marks=pytest.mark.needs("seccomp")),
]


@pytest.mark.parametrize("without", OLD_KERNELS)
@pytest.mark.parametrize("keep", [[], [0], [1, 2], [0, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_all_but_the_kept_are_closed(keep: list[int], without: int) -> None:
    kept, still_open = found(MODULE, "closed", keep, without)
    assert still_open == kept


def test_the_streams_are_nothing_special(tmp_path: Path) -> None:
    found_open = tmp_path / "open"
    code = f"import {MODULE}; {MODULE}.everything_closed({str(found_open)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=HERE, check=True, timeout=60)
    assert found_open.read_text() == "[]"
