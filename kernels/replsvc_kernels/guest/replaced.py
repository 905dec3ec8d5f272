"""Cells may put anything in the place of `sys.stdout` and `sys.stderr`, and we use what is there.

None, an object without `flush`, one that raises: that is the code's own matter when it prints, and
must not cost it a reply, a display or a traceback.
"""

from __future__ import annotations

import sys
from typing import Any

_NAMES = ("stdout", "stderr")


def flush() -> None:
    """Flush both streams, whatever they are by now."""
    for name in _NAMES:
        _flushes(getattr(sys, name, None))


def say(text: str) -> None:
    """Print `text` to stderr; where that can't be had, to the stream that was there at first."""
    stream = getattr(sys, "stderr", None)
    try:
        stream.write(text + "\n")  # type: ignore[union-attr] # None is caught
    except Exception:  # noqa: BLE001 - any code may stand there
        if sys.__stderr__ is not None:
            sys.__stderr__.write(text + "\n")


class Lent:
    """Our own streams in the place of those that can't be flushed, while stock code runs."""

    def __init__(self) -> None:
        self._theirs: dict[str, Any] = {}

    def begin(self) -> None:
        """Take away what ipykernel, which flushes unguarded, would fall over."""
        for name in _NAMES:
            stream = getattr(sys, name, None)
            if not _flushes(stream):
                self._theirs[name] = stream
                setattr(sys, name, getattr(sys, f"__{name}__"))

    def end(self) -> None:
        """Put it back."""
        while self._theirs:
            setattr(sys, *self._theirs.popitem())


def _flushes(stream: Any) -> bool:
    try:
        stream.flush()
    except Exception:  # noqa: BLE001 - any code may stand there
        return False
    return True
