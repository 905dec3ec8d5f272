"""`Kernel`: run cells in one kernel process, whatever it is and wherever it runs.

A kernel is opened by a backend (`backends.base.Backend.open`) as an async context manager: leaving
it ends the process and everything it started, and removes its directory. One cell runs at a time;
who queues is the caller's business. All methods may be cancelled, and a cancelled one leaves the
kernel usable unless it says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal

import trio

from replsvc_kernels.messages import (
    BackgroundOutput,
    Exit,
    InputRequest,
    Kept,
    LimitHit,
    Limits,
    Output,
    Reply,
    SetupCode,
    SetupReport,
    ToolSpec,
)


class KernelError(Exception):
    """Base of what a kernel raises."""


class KernelDied(KernelError):  # noqa: N818 - it says what happened
    """The kernel's process ended. `exit` says how, `printed` is the last it wrote outside cells."""

    def __init__(self, exit: Exit, printed: bytes = b"") -> None:  # noqa: A002
        super().__init__(f"kernel ended: {exit}")
        self.exit, self.printed = exit, printed


class ProtocolViolation(KernelError):  # noqa: N818
    """The kernel said something that is not in the protocol or over a bound; it has been killed."""


class LaunchError(KernelError):
    """The kernel could not be started: a missing interpreter, kernelspec, or permission."""


class GuestUntested(LaunchError):  # noqa: N818 - it says what the environment is
    """The environment's ipykernel is none that our guest was tested with; the text says which."""


class EnvironmentUnreadable(LaunchError):  # noqa: N818 - it says what the environment is
    """Sessions may not read a part of their environment; `remedy` is the command that lets them."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class LaunchTimeout(KernelError):  # noqa: N818
    """The kernel was not ready in time; its process and directory are gone again."""


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """What a kernel is: language, its version, whether our guest runs in it, how it is isolated."""

    language: str
    version: str
    has_guest: bool
    isolation: Literal["none", "full", "partial", "external"] = "none"
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel's processes may use; None sets no limit. Only isolating backends set limits.

    All but `cpu_s`: it holds for all processes together where somebody counts, else, with every
    backend of our own, for each process alone. `cpu_weight` is 1 to 10,000, a fair share 100.
    """

    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    file_bytes: int | None = None
    cpu_s: float | None = None
    cpu_weight: int | None = None
    cpu_cores: float | None = None


@dataclass(frozen=True, slots=True)
class HostMount:
    """A file or directory of the host that an isolated kernel sees below its workspace."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to launch. Directories exist already and are the caller's to remove.

    - `workspace`: the kernel's cwd, HOME and TMPDIR parent, as the host reaches it.
    - `name`: of the session, for isolating backends; they keep what they need in a directory of
      that name. Without one it is that of the directory above the workspace.
    - `mount_workspace`: gives isolating backends a descriptor of a new mount of the workspace, for
      them to close; without it they show what is at its path.
    - `python`: interpreter for the guest; ignored by kernelspec backends.
    - `env`: every environment variable that the caller declares; nothing else is inherited.
    - `startup_timeout_s`: from launch to ready, else `LaunchTimeout`.
    - `resources`, `mounts`: for backends that isolate.
    - `close_grace_s`: what a polite shutdown gets before the tree is killed.
    """

    workspace: str
    name: str = ""
    mount_workspace: Callable[[], int] | None = None
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    startup_timeout_s: float = 60.0
    close_grace_s: float = 1.0
    limits: Limits = field(default_factory=Limits)
    resources: Resources = field(default_factory=Resources)
    mounts: tuple[HostMount, ...] = ()


class Cell(ABC):
    """One running cell: iterate to get its outputs; afterwards `reply` is set.

    Iteration ends after the reply *and* the kernel's idle, with everything the cell's processes
    wrote before it. It raises `KernelDied` (after the last output) when the process ends first, and
    `ProtocolViolation` when the kernel lies. Not reading is back-pressure: the cell's writers
    block.
    """

    reply: Reply | None = None

    @abstractmethod
    async def wait_started(self) -> None:
        """Wait until the kernel says that it has begun with this cell, or until it can't any more.

        An interrupt before that would find an idle kernel, and do nothing.
        """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Output]: ...

    @abstractmethod
    async def answer(self, request: InputRequest, text: str | None, *, why: str = "") -> bool:
        """Answer a request for input; whether it was still waited for.

        None is the end of input: Python code gets an `EOFError`, with `why` as its message where
        our guest runs it. A request can be answered while no later one was made, once. Raises
        `ProtocolViolation` when the kernel does not read.
        """

    @abstractmethod
    async def answer_tool(
        self,
        id_: int,
        /,
        *,
        result: object = None,
        error: Mapping[str, str] | None = None,
    ) -> bool:
        """Answer the `ToolRequest` with this id; whether it was still waited for.

        The code gets `result`, which is of JSON's types, or with `error`, a `message` and maybe a
        `type`, a `ToolError`; so it does for a result of more than 64 MB. A large result does not
        hold up other answers. Raises `ValueError` or `TypeError` for a result that is not JSON, and
        the request can still be answered; `ProtocolViolation` when the kernel does not read.
        Cancelled, the code gets a `ToolError`, or the request can still be answered.
        """


class Kernel(ABC):
    """See the module. Implemented by the wire kernel of every backend and `testing.FakeKernel`."""

    info: KernelInfo

    @abstractmethod
    def execute(
        self,
        code: str,
        *,
        cell: str,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tools: Sequence[ToolSpec] = (),
    ) -> AbstractAsyncContextManager[Cell]:
        """Run `code` as one cell called `cell` (an id unique in this kernel's life).

        `env` is set for this cell alone, then restored exactly. With `stdin` the cell's outputs
        include each `InputRequest`, to be answered by `Cell.answer`; without, asking is an error in
        the user's code. `tools` are what its code may call, by names that differ: its outputs
        include each `ToolRequest`, and a `ToolWithdrawn` for each that has no answer when it is no
        more waited for, or the cell has ended. A kernel without guest offers none of them. Leaving
        the context before the end stops listening, not the code: `interrupt` or `kill` do that.
        """

    @abstractmethod
    async def setup(self, code: SetupCode) -> SetupReport:
        """Run one extension's setup code outside history; its failure is in the report.

        Raises `KernelDied` when the code ends the process, `KernelError` for a kernel without
        guest.
        """

    @abstractmethod
    async def interrupt(self) -> bool:
        """Interrupt the running cell and the processes it started; whether it was delivered."""

    @abstractmethod
    async def terminate(self) -> None:
        """Ask the kernel's process group to end (SIGTERM)."""

    @abstractmethod
    async def kill(self, because: Exit | None = None) -> None:
        """End the kernel and every process it started, now; returns when none is left.

        `because` is the limit that it is ended for: `exit` then says so.
        """

    def cpu_s(self) -> float | None:
        """Seconds of processor time that all its processes used; None where nobody counts."""
        return None

    def limits_hit(self) -> tuple[LimitHit, ...]:
        """The limits that its processes hit since this was asked last, as far as anyone counts."""
        return ()

    @property
    @abstractmethod
    def exit(self) -> Exit | None:
        """How the kernel's process ended, None while it lives."""

    @abstractmethod
    async def wait_exited(self) -> Exit:
        """Wait until the kernel's process has ended."""

    @property
    @abstractmethod
    def background(self) -> trio.MemoryReceiveChannel[BackgroundOutput]:
        """What cells that have ended still say; bounded, unread is back-pressure.

        Their processes' and threads' streams, whose writers wait, and what threads display, which
        is replaced by a note where much waits already.
        """


class LastingKernel(Kernel):
    """A kernel that may outlive its host. Its outputs say how far they reach (`upto`, `mark`).

    Whoever runs it keeps its output for good, says so, and runs the next cell only then: what a
    cell said is gone from the kernel when another begins.
    """

    @abstractmethod
    def keep(self, cell: str, kept: Kept | None = None) -> None:
        """So much of a cell's output is kept for good; without `kept` all that was given out."""

    @abstractmethod
    def resume(
        self, code: str, *, cell: str, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Cell]:
        """Go on with the cell that ran when its host died, after what that host had kept.

        What the kernel was not asked to run in time runs now: each cell runs exactly once. A kernel
        that has ended gives what it wrote before, then raises as `execute` does.
        """
