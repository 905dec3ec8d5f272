"""The model view: output of any size as a bounded text, head and tail kept, the rest announced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from replsvc.calls import Keep
from replsvc.output.budget import Extent, Notice, line_count, prefix, shown, suffix, width
from replsvc.output.slots import Slots
from replsvc.output.terminal import Line, Stripper, has_moves

LONG_CHARS = 256 * 1024
"""A text that is longer is shortened, or redacted, in a worker thread."""
_BREAK = b"\n"


@dataclass(frozen=True, slots=True)
class View:
    """A bounded text for a model.

    `text` is valid Unicode within the budget, announcement included. `total_bytes` and
    `total_lines` count the input; `shown_bytes` and `shown_lines` what of it `text` shows, in the
    input's bytes (before escaping). What was overwritten, as on a terminal, is not shown and is no
    truncation; `truncated` says that the budget left something out.
    """

    text: str
    truncated: bool
    total_bytes: int
    total_lines: int
    shown_bytes: int
    shown_lines: int


class _Window:
    """The first and the last `size` bytes of what was written, in at most three times as much."""

    __slots__ = ("_head", "_size", "_tail", "dropped")

    def __init__(self, size: int) -> None:
        self._size = size
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = False  # something between head and tail is gone

    @property
    def full(self) -> bool:
        """Whether the head is complete, so that what comes can only be tail."""
        return len(self._head) >= self._size

    @property
    def at_line_start(self) -> bool:
        last = self._tail or self._head
        return not last or last.endswith(_BREAK)

    def skip(self) -> None:
        """Forget the tail: more lines follow than can be shown."""
        self._tail.clear()
        self.dropped = True

    def write(self, data: bytes) -> None:
        room = self._size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
            if not data:
                return
        if len(data) >= self._size:
            self.dropped = self.dropped or bool(self._tail) or len(data) > self._size
            self._tail[:] = data[-self._size :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._size:
            del self._tail[: -self._size]
            self.dropped = True

    def ends(self, rest: bytes) -> tuple[bytes, bytes, bool]:
        """First bytes, last bytes, and whether the first are all there is, if `rest` followed."""
        size = self._size
        first = bytes(self._head + rest[: size - len(self._head)])
        after = bytes(self._tail + rest[size - len(self._head) :])
        if not after and not self.dropped:
            return first, b"", True
        last = after if self.dropped else first + after
        return first, last[-size:], False


class ModelView:
    """Collects output as it comes and renders it within a budget, in memory of a few `max_bytes`.

    Carriage returns and backspaces overwrite as on a terminal, so that a progress bar shows its
    last frame; ANSI sequences and bells are removed; other control characters, undecodable bytes
    and lone surrogates are shown escaped. Each stream decodes on its own. Where one stream
    interrupts another in mid-line, the line so far stays as it is: no stream erases another's text.
    `place` puts a text that may change later, `clear` takes back what was shown so far.

    The text has at most `max_bytes` bytes (UTF-8) and `max_lines` lines. Raises `ValueError` for a
    budget below 1 or an unknown `keep`.
    """

    def __init__(self, max_bytes: int, max_lines: int, keep: Keep = "middle") -> None:
        if max_bytes < 1 or max_lines < 1:
            raise ValueError(f"a view needs a budget of at least 1: {max_bytes=}, {max_lines=}")
        if keep not in ("middle", "head", "tail"):
            raise ValueError(f'keep is "middle", "head" or "tail", not {keep!r}')
        self._max_bytes, self._max_lines, self._keep = max_bytes, max_lines, keep
        self._window = _Window(max_bytes)
        self._parts: list[bytes] = []  # of the chunk at hand, on their way to the window
        self._line = Line(self._parts.append)
        self._streams: dict[str, Stripper] = {}
        self._owner: Stripper | None = None
        self._open = False
        self.total_bytes = 0
        self._breaks = 0
        self._slots = Slots()
        self._placed: Counter[int] = Counter()

    @property
    def at_line_start(self) -> bool:
        """Whether what comes next starts a line: text that stands on its own needs no break."""
        return self._line.empty and self._window.at_line_start

    def feed(self, stream_name: str, data: bytes) -> None:
        """Add what `stream_name` wrote, however it is cut up."""
        if not data:
            return
        breaks = data.count(_BREAK)
        self.total_bytes += len(data)
        self._breaks += breaks
        self._open = not data.endswith(_BREAK)
        stripper = self._streams.get(stream_name)
        if stripper is None:
            stripper = self._streams[stream_name] = Stripper()
        if stripper is not self._owner:
            self._line.commit()
            self._owner = stripper
            self._flush()
        if self._window.full:
            if self._keep == "head":
                self._skip(stripper)
                return
            if breaks > self._max_lines:
                # Only the last lines can be shown, and no sequence or overwriting spans a break.
                self._skip(stripper)
                data = _BREAK.join(data.rsplit(_BREAK, self._max_lines + 1)[1:])
        self._write(stripper.feed(data))

    def start_line(self) -> None:
        """End the line at hand, if there is one: what comes next stands on its own."""
        if not self.at_line_start:
            self._line.commit()
            self._parts.append(_BREAK)
            self._flush()

    def place(self, slot: int, *, own_line: bool = True) -> None:
        """Show `slot` here: what `fill` gives it, whenever that is.

        Without `own_line` nothing is seen of it, not even a line break, until then.
        """
        if own_line:
            self.start_line()
        else:
            self._line.commit()
            self._flush()
        if self._window.full and self._keep == "head":
            self._window.skip()
        else:
            self._window.write(self._slots.mark(slot))
        self._placed[slot] += 1

    def fill(self, slot: int, text: str) -> None:
        """Make `text`, which is clipped already, what `slot` shows; the empty text is nothing."""
        self._slots.fill(slot, text)

    def clear(self) -> None:
        """Take back what was shown; it still counts in the totals."""
        for slot, times in self._placed.items():
            extent = self._slots.extent(slot, times)
            self.total_bytes += extent.bytes
            self._breaks += extent.lines
        self._placed.clear()
        self._slots = Slots()
        self._window = _Window(self._max_bytes)
        self._parts.clear()
        self._line.reset()
        for stripper in self._streams.values():
            stripper.reset()
        self._breaks += self._open
        self._open = False

    def _skip(self, stripper: Stripper) -> None:
        stripper.reset()
        self._line.reset()
        self._window.skip()

    def _write(self, data: bytes) -> None:
        cut = data.rfind(_BREAK) + 1
        if cut:
            body, data = data[:cut], data[cut:]
            if b"\r" in body:
                body = body.replace(b"\r\n", _BREAK)
            first = body.find(_BREAK)
            self._line.write(body[:first])
            self._line.commit()
            if has_moves(body):
                self._write_lines(body[first:])
            else:
                self._parts.append(body[first:])
        if data:
            self._line.write(data)
        self._flush()

    def _flush(self) -> None:
        if self._parts:
            self._window.write(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
            self._parts.clear()

    def _write_lines(self, body: bytes) -> None:
        """Write whole lines, some with moves; `body` begins and ends with a line break."""
        line, parts = self._line, self._parts
        parts.append(_BREAK)
        for text in body[1:-1].split(_BREAK) if len(body) > 1 else ():
            if has_moves(text):
                line.write(text)
                line.commit()
            else:
                parts.append(text)
            parts.append(_BREAK)

    def render(self, where: str = "") -> View:
        """The view so far; feeding may go on. `where` says where the whole output can be had."""
        held = b"".join(stripper.pending for stripper in self._streams.values())
        first, last, whole = self._window.ends(self._line.text + held)
        total = Extent(self.total_bytes, self._breaks + (self._open or bool(held)))
        if self._placed:
            first, last = self._slots.head(first), self._slots.tail(last)
            for slot, times in self._placed.items():
                extent = self._slots.extent(slot, times)
                total = Extent(total.bytes + extent.bytes, total.lines + extent.lines)
        if whole and line_count(first) <= self._max_lines:
            text = shown(first)
            if len(text.encode()) <= self._max_bytes:
                extent = Extent(len(first), line_count(first))
                return View(text, False, total.bytes, total.lines, extent.bytes, extent.lines)
        notice = Notice(total, where, self._max_bytes)
        # A break goes before and after the notice.
        room, lines = self._max_bytes - notice.reserve - 2, self._max_lines - 1
        head = tail = b""
        if self._keep != "tail":
            share = 2 if self._keep == "middle" else 1
            head = prefix(first, room // share, -(-lines // share))
        if self._keep != "head":
            end = first if whole else last
            tail = suffix(end, room - width(head), lines - line_count(head))
        extent = self._extent(head, tail, total)
        parts = [shown(head), notice.text(extent), shown(tail)]
        if head and not head.endswith(_BREAK):
            parts.insert(1, "\n")
        if tail:
            parts.insert(-1, "\n")
        text = "".join(parts)
        return View(text, True, total.bytes, total.lines, extent.bytes, extent.lines)

    def _extent(self, head: bytes, tail: bytes, total: Extent) -> Extent:
        lines = line_count(head) + line_count(tail)
        breaks = head.count(_BREAK) + tail.count(_BREAK)
        if head and tail and not head.endswith(_BREAK) and breaks == self._breaks:
            lines -= 1  # both are parts of one huge line
        return Extent(len(head) + len(tail), min(lines, total.lines))


def clip(text: str, max_bytes: int, max_lines: int, where: str = "", keep: Keep = "middle") -> View:
    """A finished text (a value, a traceback, a tool's result) by the same rules as `ModelView`.

    Clipping `.text` again with the same budget changes nothing. Raises `ValueError` as `ModelView`.
    """
    if text and text.isascii() and text.isprintable() and len(text) <= max_bytes and max_lines > 0:
        # Most values: one short line, in which there is nothing to interpret.
        return View(text, False, len(text), 1, len(text), 1)
    view = ModelView(max_bytes, max_lines, keep)
    view.feed("text", text.encode("utf-8", "backslashreplace"))
    return view.render(where)


def tokens_estimate(text: str) -> int:
    """About how many tokens `text` costs a model: a quarter of its UTF-8 bytes, rounded up."""
    return -(-len(text.encode("utf-8", "backslashreplace")) // 4)
