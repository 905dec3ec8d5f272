"""What is published stays within what a host accepts from an honest kernel.

A host ends a kernel that sends more: names would be lost for a large value. What does not fit is
cut or left out here, and said in the text in its place.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

from typing import Any, Callable

# As the host has them, with room for the rest of a message.
MAX_BUNDLE_BYTES = 60 * 1024 * 1024
MAX_DEPTH = 56
MAX_VALUES = 900_000
# Python itself reads no number of more than 4,300 digits.
MAX_BITS = 14_000
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
PLAIN = "text/plain"
# What a character of text takes at most, as JSON.
_MOST_A_CHAR = 6
_CHUNK = 1024 * 1024


def too_much(value: Any, most_bytes: int = MAX_BUNDLE_BYTES) -> str | None:
    """Why a host would refuse `value`, which is to be JSON; None: it would not.

    Its text counts with the bytes that it takes as JSON.
    """
    return _Measure(room=most_bytes).look(value)


def bounded(content: dict[str, Any], plain: Callable[[Any], Any]) -> dict[str, Any]:
    """A display's or a value's content, with what a host takes of its data and metadata.

    `plain` turns what JSON's encoder has to be told about into lists, dictionaries and the like.
    """
    data = content.get("data")
    if not isinstance(data, dict) or _is_small(content):
        return content
    kept: dict[str, Any] = {}
    notes: list[str] = []
    room, values = MAX_BUNDLE_BYTES, MAX_VALUES
    for name, given in sorted(data.items(), key=lambda item: item[0] != PLAIN):
        value = given
        measure = _Measure(values, room)
        why = measure.look(value)
        if why is None and measure.is_odd:
            value = plain(value)
            measure = _Measure(values, room)
            why = measure.look(value)
        if why is None:
            kept[name] = value
            room, values = room - measure.size, values - measure.values
        elif isinstance(value, str) and name == PLAIN:
            # half of it: a picture beside it may have the rest
            kept[name] = _cut(value, room // 2)
            room //= 2
        else:
            notes.append(f"[{str(name)[:100]} left out: it is {why}; save it to a file instead]")
    more = {key: content[key] for key in content if key != "data"}
    if _Measure(values, room).look(more) is not None:
        more["metadata"] = {}
        notes.append("[metadata left out: it is too large]")
    if notes:
        text = kept.get(PLAIN)
        kept[PLAIN] = "\n".join([text, *notes] if isinstance(text, str) and text else notes)
    # in the order in which they came: the first that a reader knows is what it shows
    order = [name for name in data if name in kept]
    return {**more, "data": {name: kept[name] for name in dict.fromkeys([*order, *kept])}}


def _is_small(content: dict[str, Any]) -> bool:
    """Whether it surely fits, seen cheaply: text alone, and little of it."""
    size = 0
    for part in (content["data"], content.get("metadata") or {}, content.get("transient") or {}):
        for key, value in part.items():
            if not isinstance(value, str) or not isinstance(key, str):
                return False
            size += len(value) + len(key)
    return size * _MOST_A_CHAR <= MAX_BUNDLE_BYTES


def _cut(text: str, room: int) -> str:
    """Both ends of `text`, and between them how much is missing, in at most about `room` bytes."""
    half = room // 2
    head = _fits(lambda start, end: text[start:end], len(text), half)
    tail = _fits(lambda start, end: text[len(text) - end : len(text) - start], len(text), half)
    gone = len(text) - head - tail
    note = f"{gone} of {len(text)} characters left out: more can't be shown; write it to a file"
    return f"{text[:head]}\n[... {note} ...]\n{text[len(text) - tail :]}"


def _fits(piece: Callable[[int, int], str], length: int, room: int) -> int:
    """How many characters, taken piece by piece, fit into `room` bytes."""
    taken = 0
    while taken < length:
        chunk = piece(taken, min(length, taken + _CHUNK))
        room -= _text_size(chunk)
        if room < 0:
            break
        taken += len(chunk)
    return taken


def _text_size(text: str) -> int:
    """Bytes of `text` as JSON in UTF-8; a lone surrogate is shown as six characters."""
    size = len(text.encode("utf-8", "backslashreplace"))
    if text.isascii() and text.isprintable():
        return size + text.count('"') + text.count("\\")
    size += text.count('"') + text.count("\\")
    if not text.isascii():
        # an escaped surrogate's backslash is escaped once more
        size += sum("\ud800" <= char <= "\udfff" for char in text)
    short = sum(map(text.count, "\n\r\t\b\f"))
    control = sum(text.count(chr(code)) for code in range(32))
    return size + short + 5 * (control - short)


class _Measure:
    """Counts as the host does: values by separators, bytes as sent, levels of holders."""

    def __init__(self, values: int = MAX_VALUES, room: int = MAX_BUNDLE_BYTES) -> None:
        self._most_values, self._room = values, room
        self.values = self.size = 0
        self.is_odd = False

    def look(self, value: Any) -> str | None:
        """Why it is too much. A holder within itself is too deep; iterators are not consumed."""
        level = [value]
        for _ in range(MAX_DEPTH):
            below: list[Any] = []
            for item in level:
                if isinstance(item, dict):
                    self.values += 1 + len(item)
                    self.size += 2 + 4 * len(item)
                    for key in item:
                        self.size += _text_size(key) if isinstance(key, str) else 32
                    below += item.values()
                elif isinstance(item, (list, tuple, set, frozenset)):
                    self.values += 1 + len(item)
                    self.size += 2 + len(item)
                    below += item
                elif isinstance(item, str):
                    self.size += 2 + _text_size(item)
                elif isinstance(item, (bytes, bytearray)):
                    self.size += 2 + len(item) * 4 // 3
                elif isinstance(item, int):
                    self.size += 1 + item.bit_length() * 3 // 10
                    if item.bit_length() > MAX_BITS:
                        return "with a number of too many digits"
                else:
                    self.size += 32
                    self.is_odd = self.is_odd or not (item is None or isinstance(item, float))
                if self.values > self._most_values:
                    return f"of more than {self._most_values} values"
                if self.size > self._room:
                    return f"larger than {self._room} bytes"
            if not below:
                return None
            level = below
        return f"nested over {MAX_DEPTH} deep"
