"""Secrets: text that an extension is given and that must not be seen in what we write down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from replsvc.redaction import MASK, Redactor


class Secret:
    """A text that is never shown by accident: `repr`, `str` and format give a mask.

    It crosses into the kernel as its text, where setup code gets a plain `str`, and it is redacted
    in logs, events, tracebacks, transcripts and exports. `reveal()` is the only way to the text.
    Two are equal when their texts are; an empty one is false. Raises `TypeError` for anything else
    than a `str`.
    """

    __slots__ = ("_text",)
    _text: str

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"Secret takes a str, not {type(text).__qualname__}")
        object.__setattr__(self, "_text", str.__str__(text))

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret can't be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret can't be changed")

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret can't be pickled: the pickle would show it; pickle reveal()")


def secrets_in(*values: object) -> tuple[str, ...]:
    """The texts of all `Secret`s in `values` and the containers in them, each once, in order.

    Empty ones are left out: there is nothing to hide, and nothing else would remain visible.
    """
    return tuple(dict.fromkeys(secret.reveal() for secret in _walk(values) if secret))


def _walk(values: Iterable[object]) -> Iterator[Secret]:
    seen: set[int] = set()
    waiting = [*values][::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Secret):
            yield value
        elif isinstance(value, Mapping | list | tuple | set | frozenset) and id(value) not in seen:
            seen.add(id(value))
            inside = (
                [part for pair in value.items() for part in pair]
                if isinstance(value, Mapping)
                else [*value]
            )
            waiting.extend(reversed(inside))


def redaction_problem(secret: str) -> str | None:
    """Why `secret` can't be redacted, as a sentence; None when it can."""
    try:
        Redactor([secret])
    except ValueError as error:
        return str(error)
    return None


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` without those of `secrets` that can be redacted, also where they stand escaped."""
    return Redactor(secret for secret in secrets if redaction_problem(secret) is None).text(text)
