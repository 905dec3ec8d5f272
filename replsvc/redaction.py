"""Taking secrets out of output, texts and JSON before they are logged or shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, AnyStr, Generic
from urllib.parse import quote, quote_plus

MASK = "[redacted]"
MIN_LENGTH = 4
"""Characters of the shortest secret: a shorter one occurs by chance, and its mask would tell it."""


class Redactor:
    """Replaces secrets by `[redacted]`, also where they are escaped or quoted.

    Found are a secret's UTF-8 and its forms in Python's `repr` and `ascii`, in JSON and in URLs.
    Occurrences that overlap are one mask. A stream may be cut up in any way. Without secrets a
    redactor is false and hands everything through.

    Raises `ValueError` for a secret that is shorter than 4 characters or a part of the mask.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        raw: set[bytes] = set()
        for secret in secrets:
            if len(secret) < MIN_LENGTH:
                raise ValueError(
                    f"a secret of {len(secret)} characters can't be redacted: it would occur by"
                    f" chance in ordinary output; use at least {MIN_LENGTH}"
                )
            if secret in MASK:
                raise ValueError(f"a secret that is a part of {MASK!r} can't be redacted by it")
            own = set(_forms(secret))
            forms |= own
            raw |= {form.encode("utf-8", "surrogatepass") for form in own}
            raw.add(_environment_bytes(secret))
        self._text = _Masker(forms, MASK)
        self._bytes = _Masker(raw, MASK.encode())
        self._streams: dict[str, tuple[bytes, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._text.forms)

    def feed(self, stream: str, data: bytes) -> bytes:
        """`data` of a stream, redacted; a tail that may begin a secret is held back until the next.

        What was held back is less than the longest form of a secret.
        """
        if not self:
            return data
        rest, masked = self._streams.get(stream, (b"", 0))
        out, rest, masked = self._bytes.step(rest + data, masked)
        self._streams[stream] = rest, masked
        return out

    def held(self, stream: str) -> int:
        """How many bytes of a stream are held back, and have not gone out as a mask."""
        rest, masked = self._streams.get(stream, (b"", 0))
        return len(rest) - masked

    def flush(self, stream: str) -> bytes:
        """What is still held back of a stream that has ended, redacted."""
        rest, masked = self._streams.pop(stream, (b"", 0))
        return self._bytes.step(rest, masked, final=True)[0]

    def text(self, text: str) -> str:
        """`text`, redacted."""
        return self._text.step(text, final=True)[0] if self else text

    def json(self, value: Any) -> Any:
        """A JSON value with every text in it redacted, keys included; the value itself stays.

        A number whose digits tell a secret becomes the mask. Keys that become alike get `#2`, `#3`.
        """
        if not self:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = json.dumps(value)
            return value if self.text(shown) == shown else MASK
        return value

    def _object(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, item in value.items():
            clean = name = self.json(key)
            count = 1
            while name in out:
                count += 1
                name = f"{clean}#{count}"
            out[name] = self.json(item)
        return out


class _Masker(Generic[AnyStr]):
    """Masks any of `forms`, for texts and for bytes alike."""

    def __init__(self, forms: Iterable[AnyStr], mask: AnyStr) -> None:
        self.forms: tuple[AnyStr, ...] = tuple(forms)
        self._mask: AnyStr = mask

    def step(
        self, text: AnyStr, masked: int = 0, *, final: bool = False
    ) -> tuple[AnyStr, AnyStr, int]:
        """What of `text` can go out, what is held back, and how much of that is masked already.

        The first `masked` characters belong to an occurrence whose mask went out before. They are
        kept because another one may begin in them, and then is part of that mask.
        """
        hold = len(text) if final else self._hold(text)
        out: list[AnyStr] = []
        at = 0
        for start, end in self._spans(text, masked):
            if start >= hold and not (masked and start == 0):
                break
            if start or not masked:
                out += [text[at:start], self._mask]
            at = end
        out.append(text[at:hold])
        return self._mask[:0].join(out), text[hold:], max(0, at - hold)

    def _spans(self, text: AnyStr, masked: int) -> list[tuple[int, int]]:
        """Where secrets are; those that overlap are one span."""
        found = [(0, masked)] if masked else []
        for form in self.forms:
            at = text.find(form)
            own: list[tuple[int, int]] = []
            while at >= 0:
                _merge(own, at, at + len(form))
                at = text.find(form, at + 1)
            found += own
        spans: list[tuple[int, int]] = []
        for start, end in sorted(found):
            _merge(spans, start, end)
        return spans

    def _hold(self, text: AnyStr) -> int:
        """Where the longest tail begins that more text could complete to a secret."""
        hold = len(text)
        for form in self.forms:
            at = text.find(form[:1], max(0, len(text) - len(form) + 1))
            while 0 <= at < hold:
                if form.startswith(text[at:]):
                    hold = at
                at = text.find(form[:1], at + 1)
        return hold


def _merge(spans: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a span that starts no earlier than the last one of `spans`."""
    if spans and start < spans[-1][1]:
        spans[-1] = spans[-1][0], max(spans[-1][1], end)
    else:
        spans.append((start, end))


def _forms(secret: str) -> Iterator[str]:
    yield secret
    data = _environment_bytes(secret)
    for shown in (repr(secret), ascii(secret)):
        yield shown[1:-1]
    yield repr(data)[2:-1]
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
    for quoted in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield quoted
        yield _lower_escapes(quoted)


def _lower_escapes(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _environment_bytes(secret: str) -> bytes:
    """The bytes that a process finds in its environment for `secret`."""
    try:
        return secret.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return secret.encode("utf-8", "surrogatepass")
