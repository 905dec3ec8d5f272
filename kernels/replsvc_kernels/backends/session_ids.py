"""Which ids sessions get: one of their own where a range is mapped, else ours for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import trio

from replsvc_kernels.kernel import LaunchError
from replsvc_kernels.sandbox import namespaces

# Ids from here on are for sessions' users, as root: far above what systems give to anybody.
FIRST_UID = 1_879_048_192
# What newuidmap may take to say whether it works here.
TRIAL_S = 20.0
TRY = """
import sys
sys.path.append(sys.argv[1])
from sandbox import namespaces
try:
    namespaces.enter_user_namespace(namespaces.maps_from_subordinate_ids())
except OSError as error:
    sys.exit(error.strerror or str(error))
"""


class SessionIds:
    """The ids that a coordinator's sessions have. `find` comes first; it is cheap from then on.

    `missing` says why sessions have no id of their own; it is empty when they do.
    """

    def __init__(self, *, only_ours: str = "") -> None:
        """`only_ours` is a reason to give them our own id whatever else there is."""
        self.maps = namespaces.maps_for_one_id()
        self.missing = only_ours
        self.only_ours = bool(only_ours)
        self._found = bool(only_ours)
        self._finding = trio.Lock()
        self._fresh: Iterator[int] = iter(())
        self._returned: deque[int] = deque()

    @property
    def how(self) -> str:
        """One of `namespaces.ROOT`, `SUBORDINATE`, `SINGLE`."""
        return self.maps.how

    async def find(self) -> SessionIds:
        """Look once what there is; as an ordinary user with a range, try it, in some 50 ms."""
        if not self._found:
            async with self._finding:
                if not self._found:
                    self.maps, self.missing = await trio.to_thread.run_sync(_found)
                    self._fresh = iter(self.maps.sessions)
                    self._found = True
        return self

    def take(self) -> int:
        """An id for a session. Raises `LaunchError` when all of a range are taken."""
        if self.how == namespaces.SINGLE:
            return namespaces.FIRST_SESSION_ID
        # No search: there may be a thousand.
        if (user := next(self._fresh, None)) is None:
            if not self._returned:
                raise LaunchError(f"all {len(self.maps.sessions)} ids for sessions are taken")
            user = self._returned.popleft()
        return user

    def reserve(self, user: int) -> None:
        """That user has processes of an earlier coordinator's; for before the first is taken."""
        self._fresh = iter([one for one in self._fresh if one != user])

    def give_back(self, user: int) -> None:
        """No process of that user is left."""
        if self.how != namespaces.SINGLE:
            self._returned.append(user)


def _found() -> tuple[namespaces.IdMaps, str]:
    if os.geteuid() == 0:
        return namespaces.maps_for_root(FIRST_UID), ""
    try:
        maps = namespaces.maps_from_subordinate_ids()
        directory = str(Path(namespaces.__file__).parent.parent)
        done = subprocess.run(  # noqa: S603 - our own file
            (sys.executable, "-I", "-S", "-c", TRY, directory),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, check=False,
        )  # fmt: skip
    except (LookupError, OSError, subprocess.SubprocessError) as error:
        return namespaces.maps_for_one_id(), str(error)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return namespaces.maps_for_one_id(), said or "newuidmap does not work"
    return maps, ""
