"""How much of a disk a directory's files take: a walk over what hostile code wrote."""

from __future__ import annotations

import os
from contextlib import suppress

BLOCK = 4096
# One descriptor is open for each level; what lies deeper is not counted.
MAX_DEPTH = 64


def disk_usage(root: str, enough: int) -> int:
    """Bytes on the disk of all that is below `root`; more than `enough` need not be counted.

    Nothing is smaller than a block, so that the walk has an end whatever is there. No link is
    followed. What can't be read is not counted. Blocks: call it in a thread.
    """
    total = 0
    linked: set[tuple[int, int]] = set()
    stack: list[_Directory] = []
    try:
        with suppress(OSError):
            stack.append(_Directory(root, None))
        while stack and total <= enough:
            entry = next(stack[-1].entries, None)
            if entry is None:
                stack.pop().close()
                continue
            with suppress(OSError):  # gone meanwhile, or not ours to see
                facts = entry.stat(follow_symlinks=False)
                directory = entry.is_dir(follow_symlinks=False)
                if facts.st_nlink > 1 and not directory:
                    if (facts.st_dev, facts.st_ino) in linked:
                        continue
                    linked.add((facts.st_dev, facts.st_ino))
                total += max(BLOCK, facts.st_blocks * 512)
                if directory and len(stack) < MAX_DEPTH:
                    stack.append(_Directory(entry.name, stack[-1].fd))
    finally:
        for open_ in stack:
            open_.close()
    return total


class _Directory:
    """One that is open and being read. Raises `OSError`, also for a link."""

    def __init__(self, name: str, parent: int | None) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self.fd = os.open(name, flags, dir_fd=parent)
        try:
            self.entries = os.scandir(self.fd)
        except OSError:
            os.close(self.fd)
            raise

    def close(self) -> None:
        self.entries.close()
        os.close(self.fd)
