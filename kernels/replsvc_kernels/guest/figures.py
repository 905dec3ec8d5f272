"""A figure is shown once: by `plt.show()`, `display`, the last value or the cell's end, not by two.

What counts is the picture: a figure that was changed in between is shown again, and so is one that
a later cell asks for.
"""

# mypy: disallow-untyped-calls=False
# IPython's classes carry no types

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

from .plain import QuickFormatter

PLAIN = "text/plain"


class DisplayFormatter(QuickFormatter):
    """Formats as IPython's, and knows which figures the current cell has shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last: tuple[Any, Any] = (None, None)
        self._shown: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()

    def begin_cell(self) -> None:
        """Forget what the last cell has shown."""
        self._last = (None, None)
        if self._shown:
            self._shown.clear()

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> Any:
        """Format as the base class does, and remember whose data that is."""
        data, metadata = super().format(obj, include, exclude)
        module = sys.modules.get("matplotlib.figure")
        if module is not None and isinstance(obj, module.Figure):
            self._last = (obj, data)
        return data, metadata

    def is_repeated(self, data: Any) -> bool:
        """Whether `data`, which is about to be shown, is the picture of a figure shown before."""
        figure, of_figure = self._last
        if figure is None or data is not of_figure:
            return False
        self._last = (None, None)
        picture = frozenset(
            (kind, value) for kind, value in data.items() if isinstance(value, (bytes, str))
        )
        shown = self._shown.setdefault(figure, set())
        if hash(picture) in shown:
            return True
        shown.add(hash(picture))
        return False
