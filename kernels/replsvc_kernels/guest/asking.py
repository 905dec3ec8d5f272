"""What asks a person something, where nobody answers: an error at once, in the user's line."""

from __future__ import annotations

import pdb  # noqa: T100 - to guard it
import sys
from typing import Any, Callable

from IPython.core.error import StdinNotImplementedError


def refusal(what: str) -> StdinNotImplementedError:
    """The error for `what`, which needs an answer."""
    return StdinNotImplementedError(
        f"{what} needs someone to answer it, and nobody can in this session"
    )


def guard_debugger(answered: Callable[[], bool]) -> None:
    """Make every way into a debugger fail where `answered()` is false.

    To be called before IPython puts its own debugger in pdb's place: it derives from this one.
    """
    stock_interaction, stock_set_trace = pdb.Pdb.interaction, pdb.Pdb.set_trace

    def interaction(self: Any, *args: Any, **options: Any) -> Any:
        if not answered():
            sys.settrace(None)
            raise refusal("A debugger")
        return stock_interaction(self, *args, **options)

    def set_trace(self: Any, frame: Any = None, **options: Any) -> Any:
        if not answered():
            raise refusal("A breakpoint")
        return stock_set_trace(self, frame or sys._getframe(1), **options)

    pdb.Pdb.interaction = interaction  # type: ignore[method-assign]
    pdb.Pdb.set_trace = set_trace  # type: ignore[method-assign]
