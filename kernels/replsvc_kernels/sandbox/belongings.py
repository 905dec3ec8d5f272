"""Files of a session whose ids the host can't give: the server gives them, and shares them with it.

Where ids come from a subordinate range, the host's own user is 0 in the server's namespace, is none
of the sessions' users and may not become one. It reaches what they own as its group: directories
have the set-group-id bit, so that all that is made in them has that group too.
"""

from __future__ import annotations

import os
import stat

# Of the host's user and group, as the server and sessions know them.
HOST = 0
# What a session's processes begin with, so that the host can also change what they make.
UMASK = 0o002


def give(directory: str, user: int) -> None:
    """Make a directory and all below it `user`'s; the host's group may do there what it could.

    Links are not followed. What an earlier session's user made keeps its mode. Nobody changes it
    meanwhile. Raises `OSError`.
    """
    give_one(directory, user)
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            give_one(os.path.join(place, name), user)


def give_one(path: str, user: int) -> None:
    """`give` without what is below it."""
    found = os.lstat(path)
    os.chown(path, user, HOST, follow_symlinks=False)
    if found.st_uid != HOST or stat.S_ISLNK(found.st_mode):
        return
    mode = stat.S_IMODE(found.st_mode)
    of_owner = (mode & 0o700) >> 3
    os.chmod(path, mode | of_owner | (stat.S_ISGID if stat.S_ISDIR(found.st_mode) else 0))
