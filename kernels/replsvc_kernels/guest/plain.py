"""What IPython would leave as it is, seen without asking it: the common cells and values.

IPython tokenizes each cell to look for its own syntax, and asks eleven formatters about each value.
Where neither can matter, both are left out. What is not surely plain takes IPython's way, so a
wrong "no" costs time only.
"""

# mypy: disallow-untyped-calls=False
# IPython's classes carry no types

from __future__ import annotations

import re
from typing import Any

from IPython.core.formatters import BaseFormatter, DisplayFormatter

# Where a line begins with an escape or a prompt, where a magic or command follows an assignment,
# where a help mark ends a line; lines of spaces, which `dedent` empties; what breaks lines in other
# ways than \n; and what a tokenizer refuses.
_SPECIAL = re.compile(
    r"^[ \t]*(?:[%!?,;/]|>>>|\.\.\.|\[(?:nav|ins)\]|In[ ])"
    r"|=[ \t]*[%!]"
    r"|\?[ \t]*$"
    r"|^[ \t]+$"
    r"|[\x00\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]",
    re.MULTILINE,
)

# Their values show as text alone, unless somebody registers more.
_TEXT_TYPES = frozenset(
    (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range)
)


def is_plain(cell: str) -> bool:
    """Whether IPython's static transformations surely leave `cell` as it is.

    They add a newline at its end where there is none.
    """
    return bool(cell) and not cell[0].isspace() and _SPECIAL.search(cell) is None


def names_nothing(line: str) -> bool:
    """Whether `line` does not begin with a name, which could be a magic's or a macro's."""
    return not (line[0].isidentifier() or line[0] in ".*")


class QuickFormatter(DisplayFormatter):
    """Formats as its base class does; for types that only text stands for it asks only for that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked: list[Any] = []
        self._printers: list[Any] | None = None

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> Any:
        """See the base class."""
        kind = type(obj)
        if kind in _TEXT_TYPES and not include and not exclude and self._is_text(obj, kind):
            text = self.formatters["text/plain"](obj)
            return ({} if text is None else {"text/plain": text}), {}
        return super().format(obj, include=include, exclude=exclude)

    def _is_text(self, obj: Any, kind: type) -> bool:
        """Whether no formatter but that for plain text has a printer for `obj`."""
        formatters = [
            self.ipython_display_formatter,
            self.mimebundle_formatter,
            *self.formatters.values(),
        ]
        if formatters != self._asked or self._printers is None:
            self._look(formatters)
        if self._printers is None:
            return False
        for printers, single in self._printers:
            if not printers:
                continue
            if single:
                if id(obj) in printers:
                    return False
            elif any(
                cls in printers or (cls.__module__, cls.__name__) in printers
                for cls in kind.__mro__
            ):
                return False
        return True

    def _look(self, formatters: list[Any]) -> None:
        """Keep the tables in which printers are registered; none if a formatter is special."""
        self._asked, self._printers = formatters, None
        text = self.formatters.get("text/plain")
        if text is None:
            return
        printers: list[Any] = []
        for formatter in formatters:
            if formatter is text:
                continue
            method = formatter.print_method
            stock = type(formatter).__module__ == BaseFormatter.__module__
            if not stock or any(hasattr(kind, method) for kind in _TEXT_TYPES):
                return
            printers += (
                (formatter.singleton_printers, True),
                (formatter.type_printers, False),
                (formatter.deferred_printers, False),
            )
            formatter.observe(
                self._forget,
                ["singleton_printers", "type_printers", "deferred_printers", "print_method"],
            )
        self._printers = printers

    def _forget(self, _change: Any) -> None:
        self._printers = None
