"""Names: what extensions are called when their author did not say."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

FILE_STEM = "__replsvc_file_stem__"
"""Set on a module that was loaded from a path; its own name is private."""


def qualified_name(thing: object) -> str:
    """The name of a module, of a class, or of an instance's class.

    A module that was loaded from a path has its file's stem. A class's name is qualified by the
    classes around it, not by functions.
    """
    if isinstance(thing, ModuleType):
        stem = getattr(thing, FILE_STEM, None)
        return stem if isinstance(stem, str) else thing.__name__
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__qualname__.rpartition("<locals>.")[2]


class FreeNames:
    """Hands out names that are not taken: `x`, then `x#2`, `x#3` and so on."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        self._asked: Counter[str] = Counter()

    def take(self, wanted: str) -> str:
        """`wanted`, or the first numbered one of it that is free."""
        while True:
            self._asked[wanted] += 1
            number = self._asked[wanted]
            name = wanted if number == 1 else f"{wanted}#{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name
