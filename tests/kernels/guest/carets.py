"""Python's marks below a line of source: newer ones mark calls that take a whole line, too."""

from __future__ import annotations

from collections.abc import Iterable


def without_carets(lines: Iterable[str]) -> list[str]:
    """The lines of a traceback that are more than marks."""
    return [line for line in lines if line.strip(" ~^")]
