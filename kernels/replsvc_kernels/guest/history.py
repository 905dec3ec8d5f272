"""`history_request` without a database: this session, numbered 0, as IPython has it in memory."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

SESSION = 0


def find(
    manager: Any,
    access: str,
    *,
    raw: bool,
    output: bool,
    session: int = SESSION,
    start: int = 0,
    stop: int | None = None,
    n: int | None = None,
    pattern: str | None = None,
    unique: bool = False,
) -> list[tuple[Any, ...]]:
    """Entries as Jupyter has them, oldest first: `(session, line, input or (input, output))`.

    `access` is "tail", "range" or "search"; sessions before this one are not known.
    """
    source = manager.input_hist_raw if raw else manager.input_hist_parsed
    lines = list(enumerate(source))[1:]  # there is no line 0
    if access == "range":
        lines = [line for line in lines if line[0] >= max(start, 1)] if session == SESSION else []
        lines = [line for line in lines if stop is None or line[0] < stop]
    elif access == "search":
        matches = re.compile(fnmatch.translate(pattern or "*")).match
        lines = [line for line in lines if matches(line[1])]
        if unique:
            lines = sorted((number, text) for text, number in {t: n for n, t in lines}.items())
    elif access != "tail":
        return []
    if access != "range" and n is not None:
        lines = lines[-n:] if n > 0 else []
    if not output:
        return [(SESSION, number, text) for number, text in lines]
    outputs = manager.output_hist_reprs
    return [(SESSION, number, (text, outputs.get(number))) for number, text in lines]
