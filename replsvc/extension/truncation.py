"""Truncation: what a tool returns, cut as the service itself cuts output."""

from __future__ import annotations

from replsvc.calls import Keep
from replsvc.output import View, clip

MAX_BYTES, MAX_LINES = 50_000, 2_000


def truncate(
    text: str,
    *,
    max_bytes: int = MAX_BYTES,
    max_lines: int = MAX_LINES,
    keep: Keep = "middle",
    where: str = "",
) -> View:
    """Cut `text` to a budget, at line breaks, with one line that says how much is shown.

    `keep` says what stays: "head" for what one reads from its beginning (a file), "tail" for what
    ends with what matters (a log), "middle" for both ends. `where` joins the line: where the rest
    is. The result's `text` is within the budget, that line included, and shows what a terminal
    would: escape sequences are dropped, other control characters escaped. `truncated`,
    `total_bytes`, `shown_lines`, ... say what was done; cutting `text` again changes nothing.

    Raises `ValueError` for a budget that is not above 0, and for another `keep`.
    """
    return clip(text, max_bytes, max_lines, where, keep)
