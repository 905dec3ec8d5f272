"""The text of a call's result: output, value or error, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from replsvc.calls import Status
from replsvc.output.terminal import strip_ansi
from replsvc.output.view import clip

_ENDINGS: dict[Status, str] = {
    "timeout": "the deadline passed; pass a longer timeout_s or do less in one call",
    "interrupted": "stopped on request before the end; run it again if it is still needed",
    "killed": "the kernel ended; define again what the setup does not",
    "blocked": "not run; a policy forbids it",
    "denied": "not run; it was not approved",
    "cancelled": "not run to its end; the caller went away",
}


def result_text(
    view_text: str,
    value_text: str | None,
    error_lines: Sequence[str],
    *,
    status: Status,
    cause_message: str | None = None,
    notes: Iterable[str] = (),
    has_rich: bool = False,
) -> str:
    """A call's result as a model reads it, from parts that are clipped already.

    The captured output; then `=> VALUE`, or the error's lines; then, for a call that something
    ended, `[STATUS: CAUSE]`, where `cause_message` says what happened and what to do next (a
    general one is used without it); then a line in brackets for each of `notes`. `(no output)` when
    neither output, value, error nor ending is there, `(blank output)` when it is only white space.
    With `has_rich` (images or links go along) such a result is empty but for the notes.

    One line break at the end is dropped.
    """
    parts = []
    if view_text:
        parts.append(view_text.removesuffix("\n"))
    if value_text is not None:
        parts.append(f"=> {value_text}".removesuffix("\n"))
    if error_lines:
        parts.append("\n".join(line.removesuffix("\n") for line in error_lines))
    if status in _ENDINGS:
        parts.append(f"[{status}: {_one_line(cause_message or _ENDINGS[status])}]")
    if not any(part and not part.isspace() for part in parts):
        # Some models' APIs refuse a text block of white space.
        nothing = "(blank output)" if view_text else "(no output)"
        parts = [] if has_rich else [nothing]
    parts += [f"[{_one_line(note)}]" for note in notes]
    return "\n".join(parts)


def _one_line(text: str) -> str:
    return " ".join(text.split())


_FRAME = re.compile(r"\s{0,4}(?:File |Cell |Input |~?/|<ipython-input|[A-Za-z]:\\).*")
_INTERNAL = re.compile(r"[/\\](?:IPython|ipykernel|replsvc_kernels)[/\\]")
_HIDDEN = re.compile(r"\[\.\.\. skipping hidden \d+ frame")
_OF_FRAME = re.compile(r"\s|\d|-+>|$")


def clean_traceback(
    lines: Iterable[object],
    ename: str,
    evalue: str,
    max_bytes: int = 50_000,
    max_lines: int = 2_000,
) -> tuple[str, ...]:
    """A traceback as a kernel without our guest reports it, one entry a line, for a model.

    ANSI is removed, and so are the frames of IPython, ipykernel and our own guest; both ends are
    kept within the budget. The last line is `ename: evalue` where the kernel's lines do not say it.
    Entries that are not text are left out.
    """
    raw = "\n".join(line for line in lines if isinstance(line, str))
    part = 4 * max_bytes  # a kernel may send megabytes; more than this is not worth cleaning
    if len(raw) > 2 * part:
        skipped = f"\n[... {len(raw) - 2 * part:,} characters of the traceback left out]\n"
        raw = raw[:part] + skipped + raw[-part:]
    kept = []
    inside = False
    for line in strip_ansi(raw).splitlines():
        if _FRAME.match(line):
            inside = _INTERNAL.search(line) is not None
        elif inside and not _OF_FRAME.match(line):
            inside = False
        if not inside and not _HIDDEN.match(line):
            kept.append(line.rstrip())
    if ename and not any(line.startswith(ename) and "Traceback" not in line for line in kept):
        kept.append(strip_ansi(f"{ename}: {evalue}" if evalue else ename))
    return tuple(clip("\n".join(kept), max_bytes, max_lines).text.split("\n"))
