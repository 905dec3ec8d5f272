"""Why a call or a kernel ended, when not by itself: typed, with the limit and what was used."""

from __future__ import annotations

from replsvc.calls import Cause
from replsvc.config import MiB
from replsvc_kernels.messages import Exit, LimitHit


def exit_cause(died: Exit) -> Cause:
    """The cause of a call whose kernel ended by itself, by a signal, or by a limit."""
    if died.cause is not None:
        return Cause(
            kind=died.cause,
            message=_said(died),
            exit_code=died.code,
            signal=died.signal,
            limit=died.limit,
            peak=died.peak,
        )
    if died.signal is not None:
        return Cause(kind="signal", message=f"the kernel was ended by {died}", signal=died.signal)
    return Cause(kind="exit", message=f"the kernel ended with {died}", exit_code=died.code)


def _said(died: Exit) -> str:
    limit = died.limit or 0
    match died.cause:
        case "oom":
            of = f" of {limit / MiB:g} MiB" if limit else ""
            return f"the session used more than its memory{of}"
        case "cpu":
            return f"the kernel and what it started used their {limit:g} s of processor time"
        case "disk":
            return (
                f"the session's files hold {(died.peak or 0) / MiB:.4g} MiB of its "
                f"{limit / MiB:g} MiB: delete some before more are written"
            )
        case _:
            return (
                f"the kernel ended ({died}) when it could start no more than its {limit:g} "
                "processes and threads"
            )


def timeout(limit_s: float | None, elapsed_s: float) -> Cause:
    """The cause of a call whose cell ran too long."""
    return Cause(
        kind="wall",
        message=f"the cell ran longer than {limit_s:g} s",
        limit=limit_s,
        peak=round(elapsed_s, 3),
    )


def session_too_old(limit_s: float, age_s: float) -> Cause:
    """The cause of a session's end at its age, and of the call that ran then."""
    return Cause(
        kind="wall",
        message=f"a session lives {limit_s:g} s at most, and this one has ended",
        limit=limit_s,
        peak=round(age_s, 3),
    )


def idle(limit_s: float, idle_s: float) -> Cause:
    """The cause of a kernel's end when nobody used its session."""
    return Cause(
        kind="idle",
        message=f"nobody used the session for {limit_s:g} s",
        limit=limit_s,
        peak=round(idle_s, 3),
    )


def hit_cause(hit: LimitHit) -> Cause:
    """A limit that the processes of a cell hit, which the kernel outlived."""
    if hit.kind == "oom":
        of = f" of {hit.limit / MiB:g} MiB" if hit.limit else ""
        what = "a process was" if hit.count == 1 else f"{hit.count} processes were"
        message = f"{what} ended: the session used more than its memory{of}"
    else:
        message = f"a session may have {hit.limit or 0:g} processes and threads, and wanted more"
    return Cause(kind=hit.kind, message=message, limit=hit.limit, peak=hit.peak)


def tool_timeout(name: str, limit_s: float) -> Cause:
    """The cause of a call whose tool ran too long."""
    return Cause(
        kind="wall", message=f"the tool {name} ran longer than its {limit_s:g} s", limit=limit_s
    )
