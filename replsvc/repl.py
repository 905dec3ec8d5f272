"""The `repl` tool: one call runs one cell. What it takes, and what its end means for the caller."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from replsvc import causes
from replsvc.calls import Cause, Status
from replsvc.cell import CellEnd

NAME = "repl"


class ReplInput(BaseModel):
    """Input of `repl`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str = Field(description="Code to run, as in a notebook cell")
    title: str = Field(
        default="", max_length=200, description="Short label in the active voice, for lists"
    )


def input_schema() -> dict[str, Any]:
    """JSON Schema of the input, without what only pydantic needs."""
    schema = ReplInput.model_json_schema()
    schema.pop("description", None)
    for field in schema["properties"].values():
        field.pop("title", None)
    schema.pop("title", None)
    return schema


def verdict(end: CellEnd, timeout_s: float | None) -> tuple[Status, Cause | None]:
    """What a cell's end means: the call's status, and the cause when it was not the code's own."""
    if end.stopped == "timeout":
        return "timeout", causes.timeout(timeout_s, end.execution_s)
    if end.violation is not None:
        return "killed", Cause(
            kind="protocol", message=f"the kernel broke the protocol: {end.violation}"
        )
    if end.stopped == "limit":
        return "killed", end.limit
    if end.stopped == "closed":
        return "killed", Cause(kind="service_stop", message="the session was closed")
    if end.stopped == "restarted":
        return "killed", Cause(kind="service_stop", message="the session was restarted on request")
    if end.stopped == "cancelled":
        return "cancelled", None
    if end.stopped == "interrupted":
        return "interrupted", None
    if end.exit is not None:
        return "killed", causes.exit_cause(end.exit)
    reply = end.reply
    return ("ok" if reply is not None and reply.status == "ok" else "error"), None


def ending(status: Status, cause: Cause | None, *, state_lost: bool, fresh: bool) -> str | None:
    """How a cell that did not end by itself ended, and what is left, for the model to read."""
    if status in ("ok", "error"):
        return None
    why = cause.message if cause is not None else "on request"
    if fresh:
        return why
    if state_lost:
        return f"{why}; the session starts anew with its setup code, names defined in it are lost"
    return f"{why}; names defined so far are kept"
