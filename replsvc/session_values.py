"""What a session is asked to be, and what it is: frozen values, JSON field names are public."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from replsvc.calls import Keep, Value, check_env
from replsvc.config import Isolation, Limits

State = Literal["starting", "idle", "busy", "stopped", "failed"]
Lifetime = Literal["session", "call"]


def check_relative(path: str) -> str:
    """A path beneath the workspace, as given; raises ValueError for any other."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is not a path beneath the workspace")
    return path


class FileContent(Value):
    """A file put into the workspace before the first cell: exactly one of `text` and `base64`."""

    text: str | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _one(self) -> FileContent:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give either text or base64")
        if self.base64 is not None:
            try:
                base64.b64decode(self.base64, validate=True)
            except binascii.Error as error:
                raise ValueError(f"base64 can't be decoded: {error}") from None
        return self

    def content(self) -> bytes:
        """The file's bytes."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        return (self.text or "").encode("utf-8", "surrogatepass")


class Mount(Value):
    """A directory or file of the host that the workspace shows under `target`."""

    source: str
    target: str
    writable: bool = False

    @field_validator("target")
    @classmethod
    def _beneath(cls, value: str) -> str:
        return check_relative(value)

    @classmethod
    def parse(cls, text: str) -> Mount:
        """`SRC[:DST][:rw]`, as the command line takes it; raises ValueError."""
        source, *rest = text.split(":")
        writable = rest[-1:] == ["rw"]
        if writable:
            rest.pop()
        if not source or len(rest) > 1:
            raise ValueError(f"{text!r} is not SRC[:DST][:rw]")
        target = rest[0] if rest else PurePosixPath(source).name
        return cls(source=source, target=target, writable=writable)


class SessionRequest(Value):
    """A session as asked for; what is None takes the operator's default.

    `extensions` over HTTP are data: `{"name": ..., "opts": {...}}` selects one that the operator
    made available, `{"code": ..., "description": ...}` is inline. In process they are given apart.
    """

    id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")
    name: str | None = Field(default=None, max_length=200)
    backend: Literal["local"] | None = None
    environment: str | None = None
    kernel: str | None = Field(
        default=None, description="a kernelspec's name; None is our own Python kernel"
    )
    isolation: Isolation | None = None
    lifetime: Lifetime = "session"
    survive_restart: bool = Field(
        default=False,
        description="its kernel goes on when the service is killed or restarted; isolated ones of "
        "our own Python kernel, with a data directory",
    )
    extensions: tuple[dict[str, Any], ...] | None = None
    files: dict[str, FileContent] = Field(default_factory=dict)
    limits: dict[str, Any] = Field(default_factory=dict)
    truncation: Keep = "middle"
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _files(cls, files: dict[str, FileContent]) -> dict[str, FileContent]:
        for path in files:
            check_relative(path)
        return files

    @field_validator("env")
    @classmethod
    def _env(cls, env: dict[str, str]) -> dict[str, str]:
        check_env(env)
        return env


class ExtensionInfo(Value):
    """An extension of a session: its name, its tools and the names that its setup code added."""

    name: str
    tools: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    setup_s: float | None = None


class ToolInfo(Value):
    """A tool that the session offers."""

    name: str
    description: str
    input_schema: dict[str, Any]


class SessionInfo(Value):
    """A session at one instant. `generation` counts its kernels, from 1.

    `workspace_bound` is how `limits.workspace_bytes` is held: `hard`, the system refuses more;
    `soft`, it is looked at while calls run, and a kernel that has written more is ended.
    """

    id: str
    name: str | None
    tenant: str
    state: State
    backend: str
    kernel: str | None
    guest: bool = Field(
        default=True,
        description="whether our guest runs in its kernel: without, there is no setup code and no "
        "`env` for one call",
    )
    isolation: str
    isolation_missing: tuple[str, ...] = ()
    workspace_bound: Literal["hard", "soft"] | None = None
    lifetime: Lifetime
    environment: str | None
    survive_restart: bool = False
    created_at: datetime
    last_used_at: datetime
    extensions: tuple[ExtensionInfo, ...]
    tools: tuple[ToolInfo, ...] = ()
    description: str = ""
    limits: Limits
    generation: int
    queued: int = 0
    running: str | None = None


class InputInfo(Value):
    """What a call's code asks: `input()`, `getpass()` (`password`), or a debugger's prompt.

    From `expires_at` on the code gets the end of input.
    """

    id: str
    call_id: str
    prompt: str
    password: bool
    asked_at: datetime
    expires_at: datetime | None = None


class InputAnswer(Value):
    """A line, without its end; null is the end of input, as Ctrl-D at a terminal."""

    text: str | None = Field(max_length=64 * 1024, repr=False)

    @field_validator("text")
    @classmethod
    def _one_line(cls, text: str | None) -> str | None:
        for what, shown in (("\n", "line ends"), ("\r", "line ends"), ("\0", "NUL")):
            if text is not None and what in text:
                raise ValueError(f"an answer is one line and has no {shown} in it")
        if text is not None and any("\ud800" <= char <= "\udfff" for char in text):
            raise ValueError("an answer has no lone surrogates in it")
        return text


class InterruptResult(Value):
    """Whether the interrupt reached a running cell, and whether one runs still."""

    delivered: bool
    still_running: bool


def lower_limits(operator: Limits, asked: Mapping[str, Any]) -> Limits:
    """The operator's limits with those that a request lowers.

    Raises ValueError for an unknown name, a wrong type, or one above the operator's value: "none"
    is above every number.
    """
    known = Limits.model_fields
    for name in asked:
        if name not in known:
            raise ValueError(f"{name!r} is not a limit: there are {', '.join(known)}")
    limits = Limits.model_validate({**operator.model_dump(), **asked})
    for name in asked:
        ours, theirs = getattr(operator, name), getattr(limits, name)
        if ours is not None and (theirs is None or theirs > ours):
            raise ValueError(f"{name} can be at most {ours:g}, the operator's value")
    return limits


def first_problem(error: ValidationError) -> str:
    """The first field that pydantic refuses, and why."""
    problem = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
