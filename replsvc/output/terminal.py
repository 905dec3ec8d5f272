"""What a terminal would leave on the screen: escape sequences and overwritten lines, byte by byte.

Everything here is chunking-independent: however the same bytes are cut up, the same bytes come out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STRING_BOUND = 4096
"""Bytes that an OSC, DCS, SOS, PM or APC string may have; a longer one is shown as text."""

LINE_BOUND = 8192
"""Bytes or characters of a line that may still be overwritten; what a longer line has stays."""

# Strings hold no C0 controls, so that a stray introducer in binary data swallows no line break.
_STRING = rf"\x1b[\]PX^_][^\x00-\x1f\x7f]{{0,{STRING_BOUND}}}+"
_CSI = r"\x1b\[[0-?]{0,64}+[ -/]{0,8}+"
_CHARSET = r"\x1b[ -/]{1,8}+"
_COMPLETE = rf"{_CSI}[@-~]|{_STRING}(?:\x07|\x1b\\)|{_CHARSET}[0-~]|\x1b[0-OQ-WYZ\\`-~]"
_PARTIAL = rf"{_STRING}\x1b?|{_CSI}|{_CHARSET}|\x1b"

_COMPLETE_STR = re.compile(_COMPLETE)
_COMPLETE_BYTES = re.compile(_COMPLETE.encode())
_PARTIAL_BYTES = re.compile(_PARTIAL.encode())
_TOKEN_BYTES = re.compile(rb"(?:%s)|[\x1b\x07]" % _COMPLETE.encode())
LONE_ESCAPE = b"\a"
"""Stands for an ESC that starts no sequence: bells are dropped, so their byte is free."""
_MOVES_BYTES = re.compile(rb"\x1b\[[0-2]?[KG]")
# Erase in line and "to column 1" are kept as moves; ESC occurs in a stripped stream only here.
_MOVES = {
    b"\x1b[K": b"\x1b0",
    b"\x1b[0K": b"\x1b0",
    b"\x1b[1K": b"\x1b1",
    b"\x1b[2K": b"\x1b2",
    b"\x1b[G": b"\r",
    b"\x1b[0G": b"\r",
    b"\x1b[1G": b"\r",
}
_MOVE = re.compile("[\r\b\x1b]")
_OVERWRITTEN = re.compile("(?<!\x1b)[^\r\b\x1b]\b(?=[^\r\b\x1b])")
_STEP = re.compile("[^\r\b\x1b]+|\r|\b|\x1b[012]")


def strip_ansi(text: str) -> str:
    """`text` without ANSI escape sequences; an ESC that starts none stays as it is."""
    return _COMPLETE_STR.sub("", text) if "\x1b" in text else text


def has_moves(data: bytes) -> bool:
    """Whether a stripped stream's `data` moves the cursor back or erases."""
    return b"\r" in data or b"\b" in data or b"\x1b" in data


def _token(match: re.Match[bytes]) -> bytes:
    found = match[0]
    return LONE_ESCAPE if found == b"\x1b" else _MOVES.get(found, b"")


def _held_escape(data: bytes) -> int:
    """Length of the tail that may become an escape sequence with the bytes to come."""
    last = data.rfind(b"\x1b")
    if last < 0:
        return 0
    if last == len(data) - 1:
        # It may be the first half of the ST that ends an earlier string.
        opener = data.rfind(b"\x1b", 0, last)
        if opener >= 0 and data[opener + 1 : opener + 2] in (b"]", b"P", b"X", b"^", b"_"):
            match = _PARTIAL_BYTES.fullmatch(data, opener)
            return len(data) - opener if match else 1
    return len(data) - last if _PARTIAL_BYTES.fullmatch(data, last) else 0


def held_utf8(data: bytes) -> int:
    """Length (0 to 3) of the tail that may become a UTF-8 sequence with the bytes to come."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if 0xC2 <= byte <= 0xF4 and back < need else 0
    return 0


class Stripper:
    """One stream's bytes without escape sequences and bells, whole UTF-8 sequences at a time.

    `feed` holds back only an unfinished escape sequence (bounded) or UTF-8 sequence; `pending` is
    that rest. Cursor moves come out as `\\r`, `\\b` and ESC with a digit (see `Line`).
    """

    __slots__ = ("_escape", "_utf8")

    def __init__(self) -> None:
        self._escape = b""
        self._utf8 = b""

    @property
    def pending(self) -> bytes:
        """What is held back, as it would come out if nothing followed."""
        return self._utf8 + self._escape.replace(b"\x1b", LONE_ESCAPE)

    def reset(self) -> None:
        """Forget what is held back: a line break follows that ends it anyway."""
        self._escape = self._utf8 = b""

    def feed(self, data: bytes) -> bytes:
        """The next part of the stripped stream."""
        if self._escape:
            data = self._escape + data
            self._escape = b""
        if b"\x1b" in data:
            held = _held_escape(data)
            if held:
                self._escape, data = data[-held:], data[:-held]
            data = self._strip(data)
        elif b"\a" in data:
            data = data.replace(b"\a", b"")
        if self._utf8:
            data = self._utf8 + data
            self._utf8 = b""
        if data and data[-1] >= 0x80:
            held = held_utf8(data)
            if held:
                self._utf8, data = data[-held:], data[:-held]
        return data

    @staticmethod
    def _strip(data: bytes) -> bytes:
        if not _MOVES_BYTES.search(data):
            plain = _COMPLETE_BYTES.sub(b"", data)
            if b"\x1b" not in plain:
                return plain.replace(b"\a", b"")
        return _TOKEN_BYTES.sub(_token, data)


class Line:
    """The line being written, as a terminal with one cell a character would hold it.

    `write` takes parts of a stripped line without line breaks; `commit` passes what the line shows
    to `sink` and starts the next. `\\r` and `\\b` move the cursor, text overwrites, `ESC 0/1/2`
    erases to the end, to the start, or all. A line that outgrows `LINE_BOUND` is passed on as it
    comes, and the next move starts a line after it: that bounds memory and work.
    """

    __slots__ = ("_cells", "_cursor", "_raw", "_sink", "_size")

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        # Either `_raw` with the cursor at its end, or, once the cursor has moved, cells. Both hold
        # the same; bytes are faster. `_size` counts the characters of `_raw`, and beyond the bound
        # says that the line was passed on.
        self._raw = bytearray()
        self._size = 0
        self._cells: list[str] | None = None
        self._cursor = 0

    @property
    def text(self) -> bytes:
        """What of the line is not passed on yet."""
        if self._cells is None:
            return bytes(self._raw)
        return "".join(self._cells).encode("utf-8", "surrogateescape")

    @property
    def empty(self) -> bool:
        """Whether the line shows nothing."""
        return not self._size and not self._cells

    def reset(self) -> None:
        """Start the next line and forget this one."""
        self._raw.clear()
        self._size = self._cursor = 0
        self._cells = None

    def commit(self) -> None:
        """Pass on what the line shows, then start the next."""
        text = self.text
        self.reset()
        if text:
            self._sink(text)

    def write(self, part: bytes) -> None:
        """Write `part`, cut at UTF-8 boundaries, with moves but without line breaks."""
        if b"\x1b" in part:
            part = self._shorten(part)
        if self._cells is None and not has_moves(part):
            self._append(part)
        else:
            self._move(part.decode("utf-8", "surrogateescape"))

    def _shorten(self, part: bytes) -> bytes:
        """`part` without what certainly leaves no trace."""
        erased = max(part.rfind(b"\r\x1b0"), part.rfind(b"\r\x1b2"))
        if erased >= 0:
            longest = len(part) if len(part) < LINE_BOUND else max(map(len, part.split(b"\r")))
            written = self._size if self._cells is None else max(len(self._cells), self._cursor)
            if written + longest <= LINE_BOUND:
                self.reset()
                part = part[erased + 3 :]
        if self._cells is None and b"\r" not in part and b"\b" not in part:
            # Erasing to the end at the end: common in coloured output.
            short = part.replace(b"\x1b0", b"")
            if b"\x1b" not in short:
                return short
        return part

    def _append(self, part: bytes) -> None:
        if self._size <= LINE_BOUND:
            count = len(part) if part.isascii() else len(part.decode("utf-8", "surrogateescape"))
            self._size += count
            if self._size <= LINE_BOUND:
                self._raw += part
                return
            self._size = LINE_BOUND + 1
            if self._raw:
                self._sink(bytes(self._raw))
                self._raw.clear()
        self._sink(part)

    def _move(self, text: str) -> None:
        if self._cells is None:
            move = _MOVE.search(text)
            at = move.start() if move else len(text)
            if at:
                self._append(text[:at].encode("utf-8", "surrogateescape"))
                text = text[at:]
        if "\b" not in text and "\x1b" not in text:
            first, *frames = text.split("\r")
            if frames and max(map(len, frames)) <= LINE_BOUND:
                self._steps([first, "\r"] if first else ["\r"])
                self._frames(frames)
                return
        elif "\b" in text:
            # A character that the next one overwrites leaves nothing: spinners.
            short = _OVERWRITTEN.sub("", text)
            written = self._size if self._cells is None else max(len(self._cells), self._cursor)
            if written + len(short) < LINE_BOUND:
                text = short
        self._steps(_STEP.findall(text))

    def _frames(self, frames: list[str]) -> None:
        """Overlay frames of a progress bar, each written from the line's start."""
        cells = self._to_cells()
        shown = ""
        for frame in frames:
            shown = frame if len(frame) >= len(shown) else frame + shown[len(frame) :]
        cells[: len(shown)] = shown
        self._cursor = len(frames[-1])

    def _to_cells(self) -> list[str]:
        if self._cells is None:
            self._cells = list(self._raw.decode("utf-8", "surrogateescape"))
            self._cursor = len(self._cells)
            self._raw.clear()
            self._size = 0
        return self._cells

    def _steps(self, steps: list[str]) -> None:
        """Take moves and runs of text one by one."""
        for step in steps:
            if step == "\b":
                self._to_cells()
                self._cursor = max(0, self._cursor - 1)
            elif step == "\r":
                self._to_cells()
                self._cursor = 0
            elif step[0] == "\x1b":
                self._erase(step[1])
            elif self._cells is None:
                self._append(step.encode("utf-8", "surrogateescape"))
            else:
                self._put(self._cells, step)

    def _erase(self, what: str) -> None:
        if self._cells is None and what == "0":
            return  # the cursor is at the end
        cells = self._to_cells()
        if what == "0":
            del cells[self._cursor :]
        elif what == "2":
            cells.clear()
        else:
            span = min(self._cursor + 1, len(cells))
            cells[:span] = " " * span

    def _put(self, cells: list[str], run: str) -> None:
        start, size = self._cursor, len(cells)
        end = start + len(run)
        if start > size:
            cells.extend(" " * (start - size))
        cells[start:end] = run
        self._cursor = end
        if end > size and end > LINE_BOUND:
            self.commit()
            self._size = LINE_BOUND + 1
