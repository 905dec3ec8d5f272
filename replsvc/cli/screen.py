"""What commands say to people, and the statuses that they exit with."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import ParamSpec

import typer

from replsvc.errors import ConfigError, ExtensionError, InvalidInputError, ReplsvcError

OK, RAISED, USAGE, FAILED, TIMEOUT, INTERRUPTED, KILLED, BROKEN_PIPE = (
    0,
    1,
    2,
    70,
    124,
    130,
    137,
    141,
)
BY_SIGNAL = 128
"""A signal that ended the command makes its status this plus the signal's number."""

_USAGE_ERRORS = (ConfigError, ExtensionError, InvalidInputError)

P = ParamSpec("P")


def heeded(*numbers: int) -> list[int]:
    """Those signals that we were not started to ignore, as `nohup` and a shell's `&` ask for."""
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def say(message: str) -> None:
    """Tell people something on standard error; that nobody hears it is no reason to fail."""
    try:
        sys.stderr.write(f"replsvc: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def status_of(error: ReplsvcError) -> int:
    """The status to exit with: what was asked for is wrong, or it could not be done."""
    return USAGE if isinstance(error, _USAGE_ERRORS) else FAILED


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """The errors that a group holds, however deep, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from errors_in(inner)
    else:
        yield error


def explain(error: BaseException) -> int:
    """Say on standard error why a command failed, and give the status to exit with.

    A `ReplsvcError` is a message for people; anything else is a fault of ours, with its traceback.
    """
    found = list(errors_in(error))
    if all(isinstance(one, KeyboardInterrupt) for one in found):
        return INTERRUPTED
    ours = [one for one in found if isinstance(one, ReplsvcError)]
    if len(ours) < len(found):
        traceback.print_exception(error)
        say("this is a fault of replsvc: please report it with the traceback above.")
        return FAILED
    for one in ours:
        if text := getattr(one, "output", ""):
            sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        if text := getattr(one, "traceback", ""):
            sys.stderr.write(f"{text}\n")
        say(str(one))
    return max(map(status_of, ours))


def guarded(command: Callable[P, int]) -> Callable[P, None]:
    """Make a command exit with the status that it returns, or with that of what it raises."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            status = command(*args, **kwargs)
        except BrokenPipeError:
            # Who reads standard output has seen enough; what is buffered still goes nowhere.
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path
                os.dup2(nowhere.fileno(), 1)
            status = BROKEN_PIPE
        except BaseException as error:  # noqa: BLE001 - the last place where it can be explained
            status = explain(error)
        raise typer.Exit(status)

    return run
