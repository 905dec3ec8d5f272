"""Where rich output stands between the bytes of a cell: a pure merge of two streams and messages.

The guest writes a marker with a nonce into both pipes before each display message and numbers the
message the same way; so the exact place of a display is known although it travels another road.
Where Python turns from one stream to the other, a marker in both says so: two pipes have no order.
State in, outputs out; no clock, no sockets.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from replsvc_kernels.messages import Output, Stream, StreamName, ToolRequest

# ESC ] 9913 ; nonce ; number BEL: an operating system command that no terminal acts on. A `t`
# before the number says that it is a turn's.
MARKER = b"\x1b]9913;%s;"
# Number 0 marks no display: the guest writes it into stdout when it begins with a cell.
BEGUN = MARKER + b"0\x07"
MAX_DIGITS = 15
MAX_HELD_BYTES = 4 * 1024 * 1024
MAX_HELD_DISPLAYS = 256


@lru_cache(maxsize=1024)
def _marker(prefix: bytes) -> re.Pattern[bytes]:
    """One kernel's markers. Made for each of its cells, it would be a good part of a small one."""
    return re.compile(re.escape(prefix) + rb"(t?)([0-9]{1,%d})\x07" % MAX_DIGITS)


def expect(nonce: bytes) -> None:
    """Make what the first cell of a kernel needs, while nothing waits for it."""
    _marker(MARKER % nonce)


class Turn(int):
    """The number of a marker that no display belongs to."""


class Merger:
    """One cell's streams and displays, in their order.

    Bytes pass at once, unless their stream stands at a marker whose display has not come yet, or
    whose other stream has not reached it. More than `MAX_HELD_BYTES` held, or `flush`, gives
    everything up in order of arrival: a kernel that lies about markers loses order, never bytes.

    With `turns` false, bytes wait for no turn: after a cell's end, nobody may be left to write its
    other half.
    """

    def __init__(self, nonce: bytes, cell: str = "", *, turns: bool = True) -> None:
        self._prefix, self._begun = MARKER % nonce, BEGUN % nonce
        self._marker = _marker(self._prefix)
        self._longest = len(self._prefix) + 1 + MAX_DIGITS + 1
        self._cell, self._turns = cell, turns
        self._turned = 0  # turns up to this number are passed
        self._rest: dict[StreamName, bytes] = {"stdout": b"", "stderr": b""}
        self._held: dict[StreamName, deque[bytes | int]] = {"stdout": deque(), "stderr": deque()}
        self._held_bytes = 0
        self._displays: dict[int, tuple[Output, int]] = {}
        self._display_bytes = 0
        self._shown: set[int] = set()

    def feed(self, name: StreamName, data: bytes) -> list[Output]:
        """Bytes that came from one stream."""
        if not self._rest[name]:
            data = data.removeprefix(self._begun)
        if b"\x1b" not in data and not self._rest[name] and not self._held[name]:
            return [Stream(name, data, self._cell)] if data else []
        for segment in self._split(name, self._rest[name] + data):
            if not isinstance(segment, int):
                self._held_bytes += len(segment)
            self._held[name].append(segment)
        out: list[Output] = []
        self._release(out)
        if self._held_bytes > MAX_HELD_BYTES:
            out += self.flush()
        return out

    def display(self, number: int | None, output: Output, size: int = 0) -> list[Output]:
        """A display message of `size` bytes; `number` is its marker's, None when it has none.

        While `crowded`, wait for the streams instead: one more that stays gives up the order.
        """
        if number is None or number in self._shown or number in self._displays:
            return [output]
        crowded = self.crowded
        self._displays[number] = (output, size)
        self._display_bytes += size
        out: list[Output] = []
        self._release(out)
        if crowded and self.crowded:
            out += self.flush()
        return out

    @property
    def crowded(self) -> bool:
        """Whether as many displays are held as may be; bytes of the streams make room."""
        return len(self._displays) >= MAX_HELD_DISPLAYS or self._display_bytes >= MAX_HELD_BYTES

    @property
    def missing(self) -> bool:
        """Whether a stream stands at the marker of a display that has not come."""
        return any(
            isinstance(held[0], int)
            and not isinstance(held[0], Turn)
            and held[0] not in self._displays
            for held in self._held.values()
            if held
        )

    @property
    def holds_a_call(self) -> bool:
        """Whether a call of a tool waits for its place, and somebody for its answer."""
        return any(isinstance(output, ToolRequest) for output, _ in self._displays.values())

    def flush(self) -> list[Output]:
        """Everything that is held: the cell has ended, or order can't be had."""
        out: list[Output] = []
        for name, rest in self._rest.items():
            if rest:
                self._held[name].append(rest)
                self._held_bytes += len(rest)
                self._rest[name] = b""
        self._release(out)
        # Both streams stand at a marker now, or are empty. The lower one was written first.
        while heads := [held[0] for held in self._held.values() if held]:
            number = min(head for head in heads if isinstance(head, int))
            self._show(number, out)
            self._release(out)
        for number in sorted(self._displays):
            self._show(number, out)
        return out

    def _split(self, name: StreamName, data: bytes) -> list[bytes | int]:
        """Cut at markers; what may be the beginning of one is kept for the next chunk."""
        segments: list[bytes | int] = []
        start = 0
        for marker in self._marker.finditer(data):
            if marker.start() > start:
                segments.append(data[start : marker.start()])
            number = int(marker[2])
            if not marker[1] and number:
                segments.append(number)
            elif marker[1] and self._turns:
                segments.append(Turn(number))
            start = marker.end()
        keep = self._partial(data[max(start, len(data) - self._longest) :])
        end = len(data) - keep
        self._rest[name] = data[end:]
        if end > start:
            segments.append(data[start:end])
        return segments

    def _partial(self, tail: bytes) -> int:
        """How many bytes at the end may be an unfinished marker: only its first byte is an ESC."""
        at = tail.rfind(b"\x1b")
        if at < 0:
            return 0
        end = tail[at:]
        if self._prefix.startswith(end):
            return len(end)
        if not end.startswith(self._prefix):
            return 0
        digits = end.removeprefix(self._prefix).removeprefix(b"t")
        unfinished = len(digits) <= MAX_DIGITS and (not digits or digits.isdigit())
        return len(end) if unfinished else 0

    def _show(self, number: int, out: list[Output]) -> None:
        """Pass this marker, with its display if that has come."""
        turn = isinstance(number, Turn)
        if turn:
            self._turned = max(self._turned, number)
        elif number in self._displays:
            output, size = self._displays.pop(number)
            self._display_bytes -= size
            self._shown.add(number)
            out.append(output)
        for held in self._held.values():
            if held and held[0] == number and isinstance(held[0], Turn) == turn:
                held.popleft()

    def _release(self, out: list[Output]) -> None:
        while True:
            for name, held in self._held.items():
                while held and self._passes(held[0]):
                    segment = held.popleft()
                    if not isinstance(segment, int):
                        self._held_bytes -= len(segment)
                        out.append(Stream(name, segment, self._cell))
            heads = [held[0] for held in self._held.values() if held]
            marks = [head for head in heads if isinstance(head, int)]
            if len(marks) < len(self._held):
                return
            # Threads that turn at the same time write their markers crosswise: the lower is passed.
            number = min(marks)
            if not isinstance(number, Turn) and (
                marks[0] != marks[1] or number not in self._displays
            ):
                return
            self._show(number, out)

    def _passes(self, head: bytes | int) -> bool:
        if isinstance(head, Turn):
            return head <= self._turned
        return not isinstance(head, int) or head in self._shown
