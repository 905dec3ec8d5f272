"""The frozen values that flow: a request becomes a `Call`, a call's life becomes `Event`s.

What a client sees and what the transcript keeps are these same objects. JSON field names are the
public interface (docs: `/openapi.json`). Times are UTC, durations carry their unit in the name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator


class Value(BaseModel):
    """Base of every value: frozen, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Status = Literal[
    "queued",
    "running",
    "waiting",
    "ok",
    "error",
    "timeout",
    "interrupted",
    "killed",
    "blocked",
    "denied",
    "cancelled",
]
ENDED: frozenset[Status] = frozenset(
    ("ok", "error", "timeout", "interrupted", "killed", "blocked", "denied", "cancelled")
)

Keep = Literal["middle", "head", "tail"]
"""What a budget leaves of a long text: both ends without the middle, only the head, or the tail."""

CauseKind = Literal[
    "exit",
    "signal",
    "oom",
    "cpu",
    "disk",
    "pids",
    "wall",
    "idle",
    "protocol",
    "setup",
    "service_stop",
    "node_lost",
    "unknown_tool",
    "invalid_input",
    "veto",
    "denied",
]


class Cause(Value):
    """Why a call ended without its code's own result."""

    kind: CauseKind
    message: str
    exit_code: int | None = None
    signal: int | None = None
    limit: float | None = None
    peak: float | None = None


class TextContent(Value):
    """Text for the model, within the session's output budget."""

    type: Literal["text"] = "text"
    text: str


class ImageContent(Value):
    """An image for the model: base64 `data` of `mime_type`."""

    type: Literal["image"] = "image"
    data: str
    mime_type: str


class ResourceLink(Value):
    """Where something too large for a result can be fetched."""

    type: Literal["resource_link"] = "resource_link"
    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


Content = Annotated[TextContent | ImageContent | ResourceLink, Field(discriminator="type")]


class ErrorInfo(Value):
    """The exception that the user's code raised. `traceback` has one entry a line, without ANSI."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


class OutputInfo(Value):
    """The captured output, stdout and stderr in order of arrival, as the model sees it.

    `text` is the model view; `total_bytes` and `total_lines` count the whole log, `artifact` is the
    id under which that log can be fetched. `truncated` is true when `text` leaves something out,
    or an error's message was too long to be kept whole, and `dropped_bytes`
    counts what even the log did not keep.
    """

    text: str = ""
    truncated: bool = False
    total_bytes: int = 0
    total_lines: int = 0
    dropped_bytes: int = 0
    artifact: str | None = None


class Cost(Value):
    """What reading this result costs: bytes and estimated tokens of text, pixels of images."""

    bytes: int = 0
    tokens_estimate: int = 0
    image_px: int = 0


class Times(Value):
    """Where the time went, in seconds: in the queue, waiting (budget paused), executing."""

    queue_s: float = 0.0
    wait_s: float = 0.0
    execution_s: float = 0.0


class Usage(Value):
    """What the kernel says it used for this cell; None where it could not say."""

    cpu_s: float | None = None
    max_memory_bytes: int | None = None


class Artifact(Value):
    """A file of the workspace that a cell created or changed: `path` there, `size` in bytes.

    With `source` "output" it is something that a cell showed and that is too large for the result;
    `path` is then a name to save it under.

    `kept` tells whether its content was copied, and can be fetched under `id`, also when the
    session has ended.
    """

    id: str
    path: str
    size: int
    mime_type: str
    kept: bool = True
    source: Literal["file", "output"] = "file"


def check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse what no process environment can hold; raises ValueError."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{name!r} can't be the name of an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of {name} has a NUL byte")
        try:
            os.fsencode(name), os.fsencode(value)
        except UnicodeEncodeError:
            raise ValueError(f"{name!r} or its value has a lone surrogate") from None
    return env


MAX_STDIN_CHARS = 1024 * 1024


class CallRequest(Value):
    """One use of a tool, as asked for.

    `timeout_s` counts from the moment the cell starts. Left out, it is the session's; null or the
    word "none" lifts it where the operator allows that. `env` is set for this call only.
    `truncation` is which part of a long output the model sees; left out, it is the session's.
    `stdin` says who answers `input()`, `getpass()` and debuggers: with true each question is an
    `input_request` event, and waits for its answer; a text answers them line by line; with false
    asking is an error at once.
    """

    tool: str = "repl"
    input: dict[str, Any] = Field(default_factory=dict)
    id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["none"] | None = None
    truncation: Keep | None = None
    detach: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    stdin: StrictBool | Annotated[str, Field(max_length=MAX_STDIN_CHARS)] = Field(
        default=False, repr=False
    )
    on_disconnect: Literal["interrupt", "continue"] = "interrupt"

    @model_validator(mode="before")
    @classmethod
    def _null_is_none(cls, data: Any) -> Any:
        # None is what a field has that was left out; one that was given as null says something.
        if isinstance(data, Mapping) and data.get("timeout_s", ...) is None:
            return {**data, "timeout_s": "none"}
        return data

    @field_validator("stdin")
    @classmethod
    def _stdin(cls, stdin: bool | str) -> bool | str:
        if isinstance(stdin, str) and "\0" in stdin:
            raise ValueError("stdin has a NUL in it")
        return stdin

    @field_validator("env")
    @classmethod
    def _env(cls, env: dict[str, str]) -> dict[str, str]:
        check_env(env)
        return env


class Call(Value):
    """A call at one instant of its life; the last one, with an ended status, is its result.

    `seq` is the number of its `call_started` event, so `events?after=seq` is the rest of its story.
    `artifacts_complete` is false when more files have changed than `artifacts` lists. `terminate`
    is a tool's word that the agent may stop here. `parent_call_id` is the call whose code, or
    whose tool's handler, made this one.
    """

    id: str
    session_id: str
    seq: int
    tool: str
    parent_call_id: str | None = None
    title: str = ""
    status: Status
    is_error: bool = False
    content: tuple[Content, ...] = ()
    details: Mapping[str, Any] = Field(default_factory=dict)
    output: OutputInfo = OutputInfo()
    result: Mapping[str, Any] | None = None
    error: ErrorInfo | None = None
    cause: Cause | None = None
    state_lost: bool = False
    execution_count: int | None = None
    artifacts: tuple[Artifact, ...] = ()
    artifacts_complete: bool = True
    added_tools: tuple[str, ...] = ()
    terminate: bool = False
    created_at: datetime
    started_at: datetime | None = None
    duration_ms: float | None = None
    times: Times = Times()
    cost: Cost = Cost()
    usage: Usage = Usage()

    @property
    def text(self) -> str:
        """All text content, as a model reads it."""
        return "\n".join(part.text for part in self.content if part.type == "text")

    @property
    def ended(self) -> bool:
        """Whether this is the call's final state."""
        return self.status in ENDED


class Batch(Value):
    """What each call of a batch became, in the batch's order.

    `terminate` is true when there are calls and each of them says so.
    """

    calls: tuple[Call, ...]
    terminate: bool = False


EventKind = Literal[
    "call_started",
    "output",
    "update",
    "approval_required",
    "dialog",
    "input_request",
    "notify",
    "status",
    "tools_changed",
    "extension_error",
    "kernel_started",
    "kernel_died",
    "session_changed",
    "call_finished",
]


@dataclass(frozen=True, slots=True)
class Draft:
    """An event before the log has numbered it. `blob` holds an output's raw bytes.

    `text` is `data` as JSON, from who has made it already; then `data` itself is not looked at.
    `seq_of` is for a `call_finished` that goes to the log together with its call's start: which
    event of the same append gives `data["call"]["seq"]` its number.
    """

    kind: EventKind
    call_id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    blob: bytes | None = None
    seq_of: int | None = None
    text: str | None = None


class Event(Value):
    """One entry of a session's append-only log; `seq` starts at 1 and never skips or repeats."""

    seq: int
    kind: EventKind
    call_id: str | None = None
    at: datetime
    data: dict[str, Any] = Field(default_factory=dict)
    blob: bytes | None = Field(default=None, exclude=True)


def utc_now() -> datetime:
    """Now, in UTC, as events and calls carry it."""
    return datetime.now(UTC)
