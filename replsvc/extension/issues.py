"""Issues: what is wrong with extensions, gathered and raised as one error."""

from __future__ import annotations

import difflib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from replsvc.errors import ExtensionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import ValidationError

SHOWN = 500
"""Characters of a stranger's text (an exception's message, a name) that an issue repeats."""


def extension_error(issues: Sequence[str]) -> ExtensionError:
    """One error for all of `issues`, in their order; its message is what a terminal shows."""
    if len(issues) == 1:
        return ExtensionError(issues[0], issues=tuple(issues))
    lines = "".join(f"\n- {issue}" for issue in issues)
    return ExtensionError(
        f"{len(issues)} problems with the extensions:{lines}", issues=tuple(issues)
    )


def clip(text: str) -> str:
    """`text`, or its beginning and how much was left out."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text) - SHOWN} more)"


def shown(value: object) -> str:
    """`repr` of a stranger's value, clipped; its type where `repr` itself raises."""
    try:
        return clip(repr(value))
    except Exception:  # noqa: BLE001 - a stranger's __repr__ may raise anything
        return f"a {type(value).__qualname__}"


def refused(error: ValidationError) -> str:
    """What pydantic refuses of an input, field by field, without the values."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'input'}: {item['msg']}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    )


def raised(error: BaseException) -> str:
    """`KeyError: 'key' (weather.py:12)`: an exception with the place that raised it.

    A `SyntaxError` gives the place it speaks of.
    """
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - a stranger's __str__ may raise anything
        said = ""
    place = ""
    if isinstance(error, SyntaxError) and error.filename:
        said = error.msg
        place = f"{error.filename}:{error.lineno}"
    elif frames := traceback.extract_tb(error.__traceback__):
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
    kind = type(error).__name__
    return clip(f"{kind}: {said}" if said else kind) + (f" ({place})" if place else "")


def nearest(name: str, known: Sequence[str]) -> str:
    """` Did you mean 'x'?` when one of `known` is near, otherwise nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def absolute(file: str) -> str:
    """A file's absolute path; names that aren't paths (`<string>`) stay.

    Symbolic links stay too, as they do in Python's own tracebacks.
    """
    return file if file.startswith("<") else str(Path(file).absolute())
