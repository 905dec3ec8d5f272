"""What a kernel may say, as typed, bounded, frozen values.

Everything here was checked by `_channels` before it was built: strings are strings, sizes are under
`Limits`, metadata is plain JSON. Nothing in a value is a path, an object or code of ours.
Terms are Jupyter's (https://jupyter-client.readthedocs.io/en/stable/messaging.html).
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

StreamName = Literal["stdout", "stderr"]
Mimebundle = Mapping[str, Any]
"""Media type to data: text as `str`, JSON types as JSON values, binary types base64 in a `str`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes that a cell's process tree wrote, in the order in which the kernel's host saw them.

    `cell` is the id that `Kernel.execute` was given; `background` is true for bytes that came after
    that cell's reply. `upto` is how far into the stream these bytes reach, said by kernels that may
    outlive their host.
    """

    name: StreamName
    data: bytes
    cell: str = ""
    background: bool = False
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class DisplayData:
    """Rich output (`display_data`), or with `update=True` a replacement (`update_display_data`).

    `mark` numbers rich outputs of kernels that may outlive their host. `cell` and `background` are
    as a `Stream`'s, for what is displayed after its cell's end.
    """

    data: Mimebundle
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False
    mark: int | None = None
    cell: str = ""
    background: bool = False


@dataclass(frozen=True, slots=True)
class ExecuteResult:
    """The value of a cell's last expression (`execute_result`)."""

    data: Mimebundle
    metadata: Mapping[str, Any] = field(default_factory=dict)
    execution_count: int | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    """`clear_output`: what was shown so far is replaced by the next output when `wait`."""

    wait: bool = False
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that user code raised, as the kernel reports it: names and traceback lines.

    `left_out` is how many characters of its message the kernel says that it did not send.
    """

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A cell's end. `cpu_s` and `max_rss_bytes` are the kernel's own word, for information only.

    `published` is how many messages it published for the cell until then, if it says so: with them
    at hand nothing is missing, and its idle need not be awaited.
    """

    status: Literal["ok", "error", "aborted"]
    execution_count: int | None = None
    failure: Failure | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    published: int | None = None


@dataclass(frozen=True, slots=True)
class InputRequest:
    """The cell waits for a line from a person; `password` when it must not be shown.

    `number` counts the cell's requests, from 1: only the last one can be answered.
    """

    prompt: str = ""
    password: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class InputWithdrawn:
    """The cell has stopped waiting for what it asked last, as when it is interrupted."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that code may call, as data: `parameters` is the JSON Schema of its input.

    Where `signature` is given, `repr(tools)` shows it in the kernel, one line; `help` has its own,
    made of the schema.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    signature: str = ""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The cell calls one of its tools, to be answered by `Cell.answer_tool`.

    `id` is unique among the cell's. `arguments` are of plain JSON and unchecked. `background` says
    that another thread than the cell's main one waits; that is the kernel's word. `size` is that of
    its message, in bytes.
    """

    id: int
    name: str
    arguments: Mapping[str, Any]
    background: bool = False
    size: int = 0


@dataclass(frozen=True, slots=True)
class ToolWithdrawn:
    """The cell has stopped waiting for a `ToolRequest`, as when it is interrupted or has ended."""

    id: int


NO_DESCRIPTORS = 171
"""The exit status of a guest that can't take another cell's pipes; guest/spares.py has it too."""

Output = (
    Stream
    | DisplayData
    | ExecuteResult
    | ClearOutput
    | InputRequest
    | InputWithdrawn
    | ToolRequest
    | ToolWithdrawn
)
"""What a cell yields before its `Reply`."""

BackgroundOutput = Stream | DisplayData
"""What a cell says after its `Reply`."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of a cell's output has been kept for good: bytes of each stream, rich outputs."""

    streams: Mapping[StreamName, int] = field(default_factory=dict)
    mark: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a kernel's process ended: `code` on a plain exit, `signal` when a signal ended it.

    `cause` names the limit that ended it, where one did, with the limit and the most that was used.
    """

    code: int | None = None
    signal: int | None = None
    cause: Literal["oom", "cpu", "disk", "pids"] | None = None
    limit: float | None = None
    peak: float | None = None

    def __str__(self) -> str:
        """Say it as a sentence's end: `exit code 3`, `signal 9 (SIGKILL)`."""
        if self.signal is None:
            if self.code == NO_DESCRIPTORS:
                return (
                    f"exit code {self.code}: it could have no descriptor for a cell's output. "
                    "Close files, and leave RLIMIT_NOFILE as it is"
                )
            return "exit code unknown" if self.code is None else f"exit code {self.code}"
        try:
            name = signals.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"
        return f"signal {self.signal} ({name})"


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that the kernel's processes hit `count` times, and which it outlived.

    `oom`: so many were ended for using too much memory; `pids`: so many could not be started.
    """

    kind: Literal["oom", "pids"]
    count: int
    limit: float | None = None
    peak: float | None = None


@dataclass(frozen=True, slots=True)
class SetupCode:
    """One extension's setup code, as data: the kernel compiles it with its own Python.

    - `name`: the extension's; it names the module that the code runs in.
    - `source`: Python source; `body_of` names the function in it whose body is the code, or is None
      when the whole source is the code.
    - `file`, `first_line`: where `source` stands in a real file, for tracebacks and breakpoints.
    - `values`: parameter name to Python literal (as `repr` writes it), bound before the code runs;
      not in the `repr`, since secrets cross here.
    """

    name: str
    source: str
    file: str
    first_line: int = 1
    body_of: str | None = None
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SetupReport:
    """What one `SetupCode` did: the public names it added, what it printed, or how it failed."""

    name: str
    names: tuple[str, ...] = ()
    output: bytes = b""
    duration_s: float = 0.0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is accepted from a kernel, in bytes and counts; past one it is `protocol`.

    All but `output_bytes_per_s`: who writes more to stdout and stderr is slowed down to it. That
    needs our guest.
    """

    max_message_bytes: int = 64 * 1024 * 1024
    max_json_depth: int = 64
    max_traceback_lines: int = 1_000
    max_streams: int = 64
    output_bytes_per_s: float | None = None
