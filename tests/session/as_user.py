"""Run a command as an ordinary user who owns nothing but a home directory; started by root.

An interpreter, or a checkout, below a directory that only root may enter is shown to the user at
its own place, in a mount namespace of this process alone. `--range` gives the user subordinate ids
there, `--groups` a part of the control groups, as a system's administrator would.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "sandbox"))

from sessions import USER, give_user_a_range  # noqa: E402

from replsvc_kernels.sandbox import mounts, namespaces  # noqa: E402
from replsvc_kernels.sandbox.cgroups import CgroupRoot, Limits  # noqa: E402

PR_SET_PDEATHSIG = 1


def closed_to_others(path: Path) -> Path | None:
    """The topmost directory on the way to `path` that others may not pass through."""
    for place in (*reversed(path.parents), path):
        if place.is_dir() and not place.stat().st_mode & 0o001:
            return place
    return None


def show(paths: set[Path]) -> None:
    """Cover each closed directory by an empty one in which only these paths are."""
    closed: dict[Path, list[Path]] = {}
    for path in paths:
        if (top := closed_to_others(path)) is not None:
            closed.setdefault(top, []).append(path)
    for top, inside in closed.items():
        trees = [(path, mounts.tree(str(path), 0)) for path in inside]
        mounts.mount(str(top), "tmpfs", mounts.SAFE, "mode=755")
        for path, tree in trees:
            path.mkdir(parents=True, exist_ok=True)
            mounts.attach(tree, str(path))
            os.close(tree)


def delegate(root: CgroupRoot) -> None:
    """A group in each hierarchy becomes the user's, with us in it."""
    group = root.create("user", Limits())
    group.add(os.getpid())
    for path in map(Path, group.paths):
        for place in (path, *path.glob("cgroup.*"), *path.glob("tasks")):
            os.chown(place, USER, USER)


def become(home: Path, command: list[str]) -> None:
    """Never returns."""
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    # Whoever waits for this process may be killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execve(command[0], command, {**os.environ, "HOME": str(home), "TMPDIR": str(home)})


def main() -> int:
    """The command's exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--range", action="store_true")
    parser.add_argument("--groups", action="store_true")
    parser.add_argument("--directory", type=Path, help="shown too, and where the command runs")
    parser.add_argument("--home", type=Path, help="the user's already; else one for the while")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    home = given.home or Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    root = CgroupRoot.detect(prefix="replsvc-user") if given.groups else None
    try:
        os.chown(home, USER, USER)
        child = os.fork()
        if child == 0:
            if root is not None:
                delegate(root)
            if given.range:
                give_user_a_range()
            namespaces.unshare(namespaces.NEWNS)
            mounts.make_private()
            shown = {Path(sys.base_prefix).resolve(), Path(sys.prefix).absolute()}
            show(shown | ({given.directory} if given.directory else set()))
            os.chdir(given.directory or home)
            become(home, given.command)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        if root is not None:
            root.close()
        if given.home is None:
            shutil.rmtree(home)


if __name__ == "__main__":
    sys.exit(main())
