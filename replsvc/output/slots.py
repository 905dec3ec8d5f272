"""Places in an output whose text is decided later: displays that may be updated, pictures."""

from __future__ import annotations

import re

from replsvc.output.budget import Extent, line_count

# No stream's bytes hold an ESC once they are stripped, so that nobody else can write a mark.
_MARK = re.compile(rb"\x1b([0-9]{1,9})\x1b\n")
_CUT_END = re.compile(rb"\x1b[0-9]{0,9}\x1b?\Z")
_CUT_START = re.compile(rb"[0-9]{0,9}\x1b\n")


class Slots:
    """Texts by number, and the marks that stand for them among shown bytes."""

    def __init__(self) -> None:
        self._texts: dict[int, bytes] = {}

    @staticmethod
    def mark(slot: int) -> bytes:
        """What stands for `slot` until its text is wanted; a line of its own."""
        return b"\x1b%d\x1b\n" % slot

    def fill(self, slot: int, text: str) -> None:
        """Set the text of `slot`."""
        raw = text.encode("utf-8", "backslashreplace")
        self._texts[slot] = raw if not raw or raw.endswith(b"\n") else raw + b"\n"

    def extent(self, slot: int, times: int) -> Extent:
        """What `slot` counts for, shown `times`."""
        text = self._texts.get(slot, b"")
        return Extent(times * len(text), times * line_count(text))

    def head(self, raw: bytes) -> bytes:
        """`raw` with texts for marks, if it may end inside of one."""
        return self._expand(_CUT_END.sub(b"", raw))

    def tail(self, raw: bytes) -> bytes:
        """`raw` with texts for marks, if it may start inside of one."""
        cut = _CUT_START.match(raw)
        return self._expand(raw[cut.end() :] if cut else raw)

    def _expand(self, raw: bytes) -> bytes:
        return _MARK.sub(lambda mark: self._texts.get(int(mark[1]), b""), raw)
