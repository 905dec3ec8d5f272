"""What a kernel that runs on this machine finds around it: its directory and its environment."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replsvc_kernels.kernel import LaunchError, LaunchSpec

# sockaddr_un holds 108 bytes with its end; our longest name below the directory is "/k-5".
MAX_DIRECTORY_BYTES = 90
# Below it come "/pymp-xxxxxxxx/listener-xxxxxxxx".
MAX_TMPDIR_BYTES = 70
# A coordinator's runtime directory and a kernel's in it: "/replsvc-xxxxxxxx" twice.
NESTING_BYTES = 34
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}


@contextmanager
def private_directory(parent: str | None = None) -> Iterator[str]:
    """A short-lived 0700 directory for one kernel's sockets; raises `LaunchError` when too deep."""
    try:
        path = tempfile.mkdtemp(prefix="replsvc-", dir=parent)
    except OSError as error:
        raise LaunchError(f"no private directory for sockets can be made: {error}") from error
    try:
        if len(os.fsencode(path)) > MAX_DIRECTORY_BYTES:
            raise LaunchError(
                f"{path} is too long for unix sockets: set TMPDIR to a directory of at most "
                f"{MAX_DIRECTORY_BYTES - NESTING_BYTES} bytes"
            )
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _temporary(workspace: str, directory: str | None) -> str:
    """TMPDIR, short enough for the unix sockets that Python's multiprocessing makes in there."""
    if directory is None or len(os.fsencode(workspace)) <= MAX_TMPDIR_BYTES:
        return workspace
    link = Path(directory) / "tmp"
    link.symlink_to(workspace, target_is_directory=True)
    return str(link)


def kernel_environment(
    spec: LaunchSpec, python: str, directory: str | None = None
) -> dict[str, str]:
    """All variables a kernel sees: what it needs to run at all, then what was declared.

    `directory` is the kernel's private one: a workspace whose path is long gets a short name there.
    """
    bin_dir = str(Path(python).parent)
    return {
        "PATH": f"{bin_dir}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": spec.workspace,
        "TMPDIR": _temporary(spec.workspace, directory),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        # Nothing of the workspace, which is HOME, runs before the guest does.
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        **spec.env,
    }


def check_python(python: str) -> str:
    """The interpreter to start; ours when none is given. Raises `LaunchError`."""
    python = python or sys.executable
    if not Path(python).is_file() or not os.access(python, os.X_OK):
        raise LaunchError(f"there is no executable Python at {python}")
    return python


def last_line(printed: bytes) -> str:
    """The last line that a process printed, without colours, to say why it ended."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", printed.decode(errors="backslashreplace"))
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it printed nothing"
