"""Cutting raw output to a budget: how it is shown, where it may be cut, what announces the rest."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from replsvc.output.terminal import LONE_ESCAPE, held_utf8

_BREAK = b"\n"
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\t\n"))
_C1 = re.compile(rb"\xc2[\x80-\x9f]")
# surrogateescape turns an undecodable byte b into U+DC00 + b.
_LONE_ESCAPE = LONE_ESCAPE.decode()
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\udc80-\udcff]")


class Extent(NamedTuple):
    """So many bytes and lines."""

    bytes: int
    lines: int


def _escaped(match: re.Match[str]) -> str:
    code = 0x1B if match[0] == _LONE_ESCAPE else ord(match[0])
    return f"\\x{code & 0xFF:02x}"


def shown(raw: bytes) -> str:
    """`raw` as text: undecodable bytes and control characters escaped; never shorter than `raw`.

    The text of two parts cut between UTF-8 sequences is the text of the whole.
    """
    return _UNSHOWN.sub(_escaped, raw.decode("utf-8", "surrogateescape"))


def width(raw: bytes) -> int:
    """UTF-8 bytes that `raw` takes when it is shown."""
    valid = raw if raw.isascii() else raw.decode("utf-8", "ignore").encode()
    undecodable = len(raw) - len(valid)
    controls = len(raw) - len(raw.translate(None, _CONTROLS))
    high_controls = len(_C1.findall(valid)) if valid is not raw else 0
    return len(raw) + 3 * (undecodable + controls) + 2 * high_controls


def line_count(raw: bytes) -> int:
    """Lines of `raw`; a last one without line break counts."""
    return raw.count(_BREAK) + (bool(raw) and not raw.endswith(_BREAK))


def prefix(raw: bytes, max_width: int, max_lines: int) -> bytes:
    """The longest start of `raw` within the budget, at a line break.

    It is cut inside a line (between UTF-8 sequences) where that saves more than half of it.
    `raw` goes over the budget or is followed by something that does.
    """
    if max_width <= 0 or max_lines <= 0:
        return b""

    def end(at: int) -> int:
        return at - held_utf8(raw[max(0, at - 3) : at])

    limit = min(len(raw), max_width)
    at = end(limit)
    if width(raw[:at]) > max_width:
        at = end(
            bisect_right(range(limit + 1), max_width, key=lambda at: width(raw[: end(at)])) - 1
        )
    cut = raw[:at]
    if cut.count(_BREAK) >= max_lines:
        return _BREAK.join(cut.split(_BREAK, max_lines)[:max_lines]) + _BREAK
    line = cut.rfind(_BREAK) + 1
    return cut[:line] if 2 * line >= len(cut) else cut


def suffix(raw: bytes, max_width: int, max_lines: int) -> bytes:
    """The longest end of `raw` within the budget, from the start of a line; see `prefix`."""
    if max_width <= 0 or max_lines <= 0:
        return b""

    def start(at: int) -> int:
        for skip in range(min(3, len(raw) - at)):
            if not 0x80 <= raw[at + skip] < 0xC0:
                return at + skip
        return min(at + 3, len(raw))

    limit = max(0, len(raw) - max_width)
    at = start(limit) if limit else 0
    if width(raw[at:]) > max_width:
        candidates = range(limit, len(raw) + 1)
        at = start(
            candidates[bisect_left(candidates, -max_width, key=lambda at: -width(raw[start(at) :]))]
        )
    cut = raw[at:]
    if line_count(cut) > max_lines:
        closed = cut.endswith(_BREAK)
        lines = (cut[:-1] if closed else cut).rsplit(_BREAK, max_lines)[1:]
        return _BREAK.join(lines) + (_BREAK if closed else b"")
    if at and raw[at - 1 : at] != _BREAK:
        line = cut.find(_BREAK) + 1
        if 2 * (len(cut) - line) >= len(cut):
            return cut[line:]
    return cut


class Notice:
    """The one line that says how much of how much is shown and where the rest is.

    It gets shorter where the budget is too small for it, down to nothing; `reserve` is the most
    bytes that it takes.
    """

    def __init__(self, total: Extent, where: str, max_bytes: int) -> None:
        self._total = total
        counts = "[... {} of {} bytes and {} of {} lines shown"
        place = shown(b"; " + " ".join(where.split()).encode("utf-8", "backslashreplace"))
        forms = [(counts, f"{place}]" if where else "]"), (counts, "]"), ("[...", "]"), ("", "")]
        for self._counts, self._place in forms:
            self.reserve = len(self.text(total).encode())
            if self.reserve + 2 <= max_bytes:
                break

    def text(self, extent: Extent) -> str:
        """The line, without a line break, for what is shown."""
        numbers = (extent.bytes, self._total.bytes, extent.lines, self._total.lines)
        return self._counts.format(*(f"{number:,}" for number in numbers)) + self._place
