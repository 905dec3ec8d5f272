"""Whether sessions may read the environment that they are shown: tried as one of them.

Python passes over a directory on its path that it may not read, and takes what has the same name
from a later one. So what can be imported must be readable; all else is the operator's affair, and a
file that may not be read says so itself when it is imported.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

_MAY = os.R_OK | os.X_OK
# Directories beside packages that belong to them: what is installed, and wheels' libraries.
_BESIDE = (".dist-info", ".egg-info", ".libs")
# More than these are not named one by one.
_FEW = 3


class Unreadable(RuntimeError):  # noqa: N818 - it says what a directory is
    """Sessions may not read a part of their environment; `remedy` is the command that lets them."""

    def __init__(self, paths: Sequence[str], shown: Sequence[str]) -> None:
        changed = paths if len(paths) <= _FEW else sorted({_within(path, shown) for path in paths})
        self.remedy = shlex.join(["chmod", "-R", "go+rX", *changed])
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        super().__init__(
            f"sessions run as users of their own, and these may not read {paths[0]}{more}, a part "
            f"of the environment of {sys.executable}. Let them: {self.remedy}"
        )


@contextmanager
def checked(shown: Sequence[str], user: int) -> Iterator[None]:
    """Look as `user`, an id of sessions', while the body runs; raise `Unreadable` at its end.

    For a fork server in its own root, before it has threads. `shown` are the paths that it shows of
    the machine. What the body raises gives way: it may have come of what can't be read.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            answer = json.dumps(unreadable(shown, sys.path)).encode()
            with open(theirs, "wb") as file:
                file.write(answer)
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        yield
    finally:
        with open(ours, "rb") as file:
            said = file.read()
        os.waitpid(pid, 0)
        if not said:
            raise RuntimeError("whether sessions may read the environment could not be tried")
        if paths := json.loads(said):
            raise Unreadable(paths, shown)


def unreadable(shown: Iterable[str], importing: Iterable[str]) -> list[str]:
    """What we may not read of these paths and of what can be imported from them; outermost only.

    `importing` is a `sys.path`. What is in `shown` and holds nothing of it is there to be imported
    itself.
    """
    entries = {os.path.abspath(path) for path in importing if path}
    places = {os.path.abspath(path) for path in shown}
    holding = {one for one in places if any(path.startswith(f"{one}/") for path in entries)}
    found = set()
    for path in entries | places - holding:
        if (refused := _refused(path)) is not None:
            found.add(refused)
        elif os.path.isdir(path):
            found.update(_below(path))
    return sorted(one for one in found if not any(one.startswith(f"{up}/") for up in found))


def _refused(path: str) -> str | None:
    """The outermost part of a path that keeps us from reading it; None where nothing does."""
    # Links stay as they are: what a path leads to in this root may have another name outside.
    place = ""
    for part in path.split("/")[1:]:
        place = f"{place}/{part}"
        try:
            directory = stat.S_ISDIR(os.stat(place).st_mode)
        except PermissionError:  # a link to where we may not go
            return place
        except OSError:
            return None
        wanted = _MAY if directory else os.R_OK
        if not os.access(place, wanted if place == path else os.X_OK):
            return place
    return None


def _below(top: str) -> Iterator[str]:
    """Directories below one that can be read, from which something is imported, that can't be."""
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if not _is_imported(entry.name):
                    continue
                if entry.is_symlink():  # what it leads to is shown under its own name
                    if (refused := _refused(entry.path)) is not None:
                        yield refused
                elif entry.is_dir():
                    if os.access(entry.path, _MAY):
                        waiting.append(entry.path)
                    else:
                        yield entry.path


def _is_imported(name: str) -> bool:
    return name.endswith(_BESIDE) or (name.isidentifier() and name != "__pycache__")


def _within(path: str, shown: Iterable[str]) -> str:
    """The path among those shown that another lies in: nothing else is let be read."""
    holding = [one for one in shown if f"{path}/".startswith(f"{one}/")]
    return max(holding, key=len, default=path)
