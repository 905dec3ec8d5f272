"""Keep our own packages out of user code's sight, where they are installed beside ipykernel."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

SITE = ("site-packages", "dist-packages")


class Hidden(MetaPathFinder):
    """Says "no such module" for some top-level names, whatever is installed."""

    def __init__(self, names: list[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:  # noqa: ARG002
        """Raise `ModuleNotFoundError` for a hidden name; leave all others to the next finder."""
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def hide(names: list[str]) -> None:
    """Make `names` impossible to import, and drop the source trees they are installed from."""
    if not names:
        return
    sys.meta_path.insert(0, Hidden(names))

    def is_source_tree(entry: str) -> bool:
        return os.path.basename(entry) not in SITE and any(
            os.path.isdir(os.path.join(entry, name)) for name in names
        )

    sys.path[:] = [entry for entry in sys.path if not is_source_tree(entry)]
