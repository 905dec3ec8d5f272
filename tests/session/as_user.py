"""`python as_user.py UID HOME PROGRAM ARGUMENT...`: as root, run it as a user who owns nothing.

An interpreter below a directory that only root may enter is shown to the user at its own place, in
a mount namespace of this process alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from replsvc_kernels.sandbox import mounts, namespaces


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
            path.mkdir(parents=True)
            mounts.attach(tree, str(path))
            os.close(tree)


def main(uid: int, home: str, *command: str) -> None:
    """Never returns."""
    namespaces.unshare(namespaces.NEWNS)
    mounts.make_private()
    show({Path(sys.base_prefix).resolve(), Path(sys.prefix).absolute()})
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.chdir(home)
    os.execve(command[0], command, {**os.environ, "HOME": home, "TMPDIR": home})


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
