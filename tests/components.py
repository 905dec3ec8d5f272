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
import tempfile
from collections.abc import Callable
from pathlib import Path

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
NEW_PID_NAMESPACE = """
import ctypes, os, sys
NEWPID, NEWUSER = 0x20000000, 0x10000000
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(NEWPID) and libc.unshare(NEWUSER | NEWPID):
    sys.exit(os.strerror(ctypes.get_errno()))
"""
LANDLOCK_ABI = """
import ctypes, os, sys
CREATE_RULESET, VERSION = 444, 1
if ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, VERSION) < 1:
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


def _seccomp() -> str | None:
    listed = Path("/proc/sys/kernel/seccomp/actions_avail")
    return None if listed.exists() else f"there is no {listed}"


def _cgroups(*, version_1: bool = False) -> str | None:
    from replsvc_kernels.sandbox.cgroups import CgroupRoot, CgroupsUnavailableError

    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    if version_1:
        mounted = [line for line in mounted if " - cgroup2 " not in line]
    try:
        root = CgroupRoot.detect(prefix="replsvc-test-probe", mountinfo="\n".join(mounted))
    except CgroupsUnavailableError as error:
        return str(error)
    missing = [f"{name}: {why}" for name, why in root.missing.items()]
    root.close()
    return "; ".join(missing) or None


def _loop() -> str | None:
    from replsvc_kernels.sandbox.workspace_image import SMALLEST, WorkspaceImages

    try:
        os.close(WorkspaceImages(tempfile.gettempdir()).make(8 * SMALLEST, 0, 0))
    except OSError as error:
        return str(error)
    return None


PROBES: dict[str, Callable[[], str | None]] = {
    "cgroups": _cgroups,
    "cgroups_1": lambda: _cgroups(version_1=True),
    "data": lambda: _succeeds(sys.executable, "-c", "import pandas, matplotlib, sklearn"),
    "gcc": lambda: _command("gcc") or _command("objcopy"),
    "git": lambda: _command("git"),
    "index": _index,
    "landlock": lambda: _succeeds(sys.executable, "-c", LANDLOCK_ABI),
    "llvm-mc": lambda: _command("llvm-mc") or _command("llvm-objcopy"),
    "loop": _loop,
    "mount": lambda: _command("mount") or _succeeds(sys.executable, "-c", NEW_MOUNT),
    "newuidmap": lambda: _command("newuidmap") or _command("newgidmap"),
    "pidns": lambda: _succeeds(sys.executable, "-c", NEW_PID_NAMESPACE),
    "root": _root,
    "seccomp": _seccomp,
    "setpriv": lambda: _command("setpriv"),
    "userns": lambda: _succeeds(sys.executable, "-c", NEW_USER_NAMESPACE),
}


@functools.cache
def missing(component: str) -> str | None:
    """Why `component` can't be used on this machine; None when it can. Raises `KeyError`."""
    return PROBES[component]()
