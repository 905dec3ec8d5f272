"""What works here, said to an agent whose cell could not have it: a package, or more of a limit."""

from __future__ import annotations

import re
from difflib import get_close_matches

from replsvc.calls import ErrorInfo
from replsvc.config import Limits, MiB
from replsvc.extension.describe import PACKAGES_SHOWN, BaseFacts, shortlist

_MISSING = re.compile(r"No module named '([^'.]+)'$")
_PIP = re.compile(r"\bpip3?\b[^\n]{0,200}\binstall\b")
_PIP_FAILED = re.compile(
    r"^(?:ERROR: |error: externally-managed-environment|.{0,500}No module named '?pip'?$)",
    re.MULTILINE,
)


def may_need_hint(code: str, error: ErrorInfo | None, printed: str) -> bool:
    """Whether `hint` may have something to say; cheap, so that facts are gathered only then."""
    if error is not None and error.ename == "ModuleNotFoundError":
        return True
    return _PIP.search(code) is not None and _PIP_FAILED.search(printed) is not None


def hint(error: ErrorInfo | None, facts: BaseFacts) -> str | None:
    """One sentence or two for a cell of which `may_need_hint` is true; None for nothing to say.

    A package that is there but lacks the module (a dotted name) gets none.
    """
    if error is None or error.ename != "ModuleNotFoundError":
        network = "" if facts.network is True else " The network can't be reached freely."
        return f"pip did not install it.{network} {_importable(facts)}"
    if (found := _MISSING.match(error.evalue)) is None:
        return None
    names = {name.lower().replace("-", "_"): name for name, _ in facts.packages}
    missing = found.group(1)
    near = get_close_matches(missing.lower(), names, n=1, cutoff=0.7)
    meant = f" Did you mean {names[near[0]]}?" if near else ""
    return f"{missing} is not installed here.{meant} {_importable(facts)}"


def limit_hint(error: ErrorInfo | None, limits: Limits, *, hard: bool) -> str | None:
    """The limit that an error of the code's own comes from; None when it can't be one of ours.

    `limits` are those in force, `hard` says whether the workspace refuses more than its size.
    """
    if error is None:
        return None
    full, _, _ = error.evalue.partition("]")
    if full == "[Errno 28" and hard and limits.workspace_bytes is not None:
        return (
            f"All files of this session may hold {limits.workspace_bytes // MiB} MiB, apart from "
            "/tmp and /dev/shm, which have bounds of their own. "  # noqa: S108 - the session's own
            "Delete what is not needed."
        )
    if full == "[Errno 27" and limits.file_bytes is not None:
        return f"One file may hold {limits.file_bytes // MiB} MiB here. Write several."
    if full == "[Errno 24" and limits.open_files is not None:
        return f"A process may have {limits.open_files} files open here. Close some."
    no_thread = error.ename == "RuntimeError" and error.evalue == "can't start new thread"
    no_process = error.ename == "BlockingIOError" and full == "[Errno 11"
    if (no_thread or no_process) and limits.processes is not None:
        return (
            f"This session may have {limits.processes} processes and threads at a time. "
            "End some, or use fewer workers."
        )
    return None


def _importable(facts: BaseFacts) -> str:
    packages = shortlist((f"{name} {version}" for name, version in facts.packages), PACKAGES_SHOWN)
    python = f"Python {facts.version}".rstrip()
    return f"Importable in this {python}: {packages or 'the standard library only'}."
