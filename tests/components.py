"""Real components that tests lean on: `@pytest.mark.needs("docker")`, and why one is missing here.

A probe gives None when the component can be used, else the reason in a few words. Add the probe
together with the first test that needs it.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

NEW_USER_NAMESPACE = """
import ctypes, os, sys
NEWUSER = 0x10000000
if ctypes.CDLL(None, use_errno=True).unshare(NEWUSER):
    sys.exit(os.strerror(ctypes.get_errno()))
"""
NEW_MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, PRIVATE, REC = 0x20000, 0x40000, 0x4000
if (
    libc.unshare(NEWNS)
    or libc.mount(b"none", b"/", None, PRIVATE | REC, None)
    or libc.mount(b"none", b"/mnt", b"tmpfs", 0, None)
):
    sys.exit(os.strerror(ctypes.get_errno()))
"""


def _succeeds(*command: str, timeout_s: float = 60.0) -> str | None:
    """None when `command` ends with status 0, else the last line that it wrote to stderr."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"{command[0]} ended with status {done.returncode}"


def _command(name: str) -> str | None:
    return None if shutil.which(name) else f"there is no command {name}"


def _root() -> str | None:
    return None if os.geteuid() == 0 else f"runs as uid {os.geteuid()}"


def _index() -> str | None:
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run")
    return _succeeds(*command, "--ignore-installed", "--no-deps", "--no-cache-dir", "iniconfig")


PROBES: dict[str, Callable[[], str | None]] = {
    "data": lambda: _succeeds(sys.executable, "-c", "import pandas, matplotlib, sklearn"),
    "git": lambda: _command("git"),
    "index": _index,
    "mount": lambda: _command("mount") or _succeeds(sys.executable, "-c", NEW_MOUNT),
    "root": _root,
    "userns": lambda: _succeeds(sys.executable, "-c", NEW_USER_NAMESPACE),
}


@functools.cache
def missing(component: str) -> str | None:
    """Why `component` can't be used on this machine; None when it can. Raises `KeyError`."""
    return PROBES[component]()
