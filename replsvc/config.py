"""Frozen settings: every limit and default in one place.

The table in docs/operations.md is generated from here (a test holds them together), and the tool's
description states the same values. `None` lifts a limit, where the operator allows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MiB = 1024 * 1024
Isolation = Literal["required", "best", "none"]


class Section(BaseModel):
    """Base of settings: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Section):
    """What one session may use. A request may lower each of them."""

    timeout_s: float | None = Field(
        default=120.0, gt=0, description="one call, from the moment its cell starts"
    )
    max_wait_s: float | None = Field(
        default=3600.0, gt=0, description="all that one call waits for answers, its clock stopped"
    )
    interrupt_grace_s: float = Field(
        default=2.0, ge=0, description="each step of the ladder: interrupt, terminate, kill"
    )
    setup_timeout_s: float | None = Field(
        default=30.0, gt=0, description="each extension's setup code"
    )
    hook_timeout_s: float = Field(
        default=10.0, gt=0, description="each handler of an extension's hooks"
    )
    startup_timeout_s: float = Field(
        default=60.0, gt=0, description="a kernel, from launch to ready"
    )
    idle_timeout_s: float | None = Field(
        default=3600.0, gt=0, description="a session without a call, until it is stopped"
    )
    disconnect_grace_s: float = Field(
        default=10.0, ge=0, description="a call that nobody follows, until it is interrupted"
    )
    queue_limit: int = Field(default=32, ge=0, description="calls that may wait for the kernel")
    max_code_bytes: int = Field(default=1 * MiB, gt=0, description="code of one cell, as UTF-8")
    max_output_bytes: int = Field(
        default=50_000, ge=1_000, description="model view of one call's output"
    )
    max_output_lines: int = Field(
        default=2_000, ge=10, description="model view of one call's output"
    )
    max_image_px: int = Field(
        default=1_568, ge=64, description="longer side of an image for the model, in pixels"
    )
    memory_bytes: int | None = Field(
        default=1024 * MiB, ge=64 * MiB, description="memory of one session, without swap; isolated"
    )
    processes: int | None = Field(
        default=256, ge=16, description="processes and threads of one session; isolated"
    )
    open_files: int | None = Field(
        default=1_024, ge=64, description="files that one process has open; isolated"
    )
    file_bytes: int | None = Field(
        default=1024 * MiB, gt=0, description="one file that a session writes; isolated"
    )
    workspace_bytes: int | None = Field(
        default=2048 * MiB, ge=16 * MiB, description="all files of one session's workspace"
    )
    cpu_s: float | None = Field(
        default=None,
        gt=0,
        description="processor time of one kernel with all it started; where nobody counts it "
        "together, of each process",
    )
    cpu_weight: int | None = Field(
        default=100, ge=1, le=10_000, description="share of the processors; 100 is fair; isolated"
    )
    cpu_cores: float | None = Field(
        default=None, ge=0.01, description="processors that one session has at a time; isolated"
    )
    wall_s: float | None = Field(
        default=None, gt=0, description="a session's whole life, until it is closed"
    )
    output_bytes_per_s: float | None = Field(
        default=None, ge=1_024, description="output of one session, which is slowed down to it"
    )
    max_log_bytes: int = Field(
        default=64 * MiB, gt=0, description="log of one call's output; as much again after its end"
    )
    max_artifacts: int = Field(
        default=100, ge=0, description="files that one call's result lists; 0 looks for none"
    )
    max_artifact_bytes: int = Field(
        default=64 * MiB, ge=0, description="files of one call that are kept, all together"
    )


ISOLATED_LIMITS = (
    "memory_bytes", "processes", "open_files", "file_bytes", "cpu_weight", "cpu_cores",
)  # fmt: skip
"""Those that only an isolated session is held to; others do not have them."""


class Environment(Section):
    """A Python that sessions run in: any interpreter whose environment has ipykernel.

    `python` None is the interpreter that runs us. `preload` is read by the fork server. `env` is
    all that the kernel sees of environment variables, besides what a kernel needs to run at all.
    """

    python: Path | None = Field(
        default=None, description="its interpreter; none is the one that runs the service"
    )
    preload: tuple[str, ...] = Field(
        default=(), description="modules that the fork server imports once for all sessions"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of its kernels"
    )


class Service(Section):
    """Where the HTTP service listens, and who may talk to it."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8747, ge=0, le=65535, description="port; 0 takes a free one")
    keys: tuple[str, ...] = Field(
        default=(),
        description="bearer keys; without any, a one-time key is made on a loopback bind",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="Host names served besides loopback's and the bind address"
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="web origins served besides our own"
    )
    keep_survivors: bool = Field(
        default=True,
        description="on SIGTERM, sessions with `survive_restart` wait for the next service",
    )
    stop_deadline_s: float = Field(default=10.0, gt=0, description="SIGTERM to exit")
    max_body_bytes: int = Field(default=16 * MiB, gt=0, description="one request's body")


class Config(Section):
    """The whole of the settings. `data` None keeps the log in a private directory until the end.

    `extensions` are references (`module:object`, a path to a `.py` file, `REF=JSON` with opts);
    they are what a session asked for over HTTP may name.
    """

    data: Path | None = Field(
        default=None, description="data directory; none is a private one, removed at the end"
    )
    isolation: Isolation = Field(
        default="best", description="of kernels: `required`, `best` or `none`"
    )
    durability: Literal["process", "power"] = Field(
        default="process",
        description="what an acknowledged event survives: any crash, or power loss",
    )
    max_sessions: int = Field(default=1_000, gt=0, description="open sessions")
    pool_min: int = Field(
        default=0, ge=0, description="kernels ready ahead, always; isolated, each environment"
    )
    pool_max: int = Field(
        default=8,
        ge=0,
        description="kernels ready ahead while sessions are opened often; 0 makes none",
    )
    extensions: tuple[str, ...] = Field(
        default=(), description="what sessions get, and may name over HTTP"
    )
    environments: dict[str, Environment] = Field(
        default_factory=dict, description="by name; `default` is what a session gets unasked"
    )
    survive_grace_s: float = Field(
        default=300.0,
        gt=0,
        description="sessions with `survive_restart`, without a service, until they end",
    )
    limits: Limits = Limits()
    service: Service = Service()

    def environment(self, name: str | None) -> Environment:
        """The environment called `name`; None and "default" are the default one.

        Raises `KeyError` for a name that is not configured.
        """
        if name is None or name == "default":
            return self.environments.get("default", Environment())
        return self.environments[name]
