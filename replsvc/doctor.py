"""Whether sessions can run on this machine: one finding a subject, with what to do about it.

Nothing is changed: what is tried out is undone again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from replsvc.backends import UNPROTECTED, interpreter
from replsvc.config import Config, Environment, MiB
from replsvc.errors import BackendUnavailableError
from replsvc.probe import probe
from replsvc.runtime_dir import PREFIX
from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.support import support
from replsvc_kernels.backends.surroundings import private_directory
from replsvc_kernels.kernel import EnvironmentUnreadable, LaunchError, LaunchTimeout
from replsvc_kernels.sandbox import facts
from replsvc_kernels.sandbox.workspace_image import SMALLEST, WorkspaceImages

PYTHON_NEEDED = (3, 11)
# Less than this, and the log of a single call may not fit.
SPACE_NEEDED_BYTES = 64 * MiB
PR_GET_CHILD_SUBREAPER = 37

State = Literal["ok", "missing", "unused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one subject. Without it sessions can't run if it is `needed`."""

    subject: str
    state: State
    detail: str
    remedy: str = ""
    needed: bool = True

    def as_json(self) -> dict[str, object]:
        """Plain JSON; the field names are public."""
        return {
            "subject": self.subject,
            "state": self.state,
            "detail": self.detail,
            "remedy": self.remedy or None,
            "needed": self.needed,
        }


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(finding.state != "missing" or not finding.needed for finding in findings)


async def examine(config: Config) -> tuple[Finding, ...]:
    """Look at everything that sessions with these settings need, most basic first."""
    environments = {"default": config.environment(None), **config.environments}
    return (
        _python(),
        _platform(),
        _pidfd(),
        _subreaper(),
        _sockets(),
        _data(config.data),
        *[
            await _environment(name, found, isolated=config.isolation != "none")
            for name, found in environments.items()
        ],
        *await _isolation(),
        await trio.to_thread.run_sync(_workspace_bound),
        Finding("docker", "unused", "this version runs sessions locally only", needed=False),
    )


def _python() -> Finding:
    version = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info >= PYTHON_NEEDED:
        return Finding("python", "ok", version)
    needed = ".".join(map(str, PYTHON_NEEDED))
    return Finding("python", "missing", version, f"Install replsvc with Python {needed} or newer.")


def _platform() -> Finding:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform == "linux":
        return Finding("platform", "ok", name)
    return Finding(
        "platform", "missing", name, "Run it on Linux: in a container, a virtual machine or WSL2."
    )


def _pidfd() -> Finding:
    try:
        handle = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(handle, 0)
        finally:
            os.close(handle)
    except (AttributeError, OSError) as error:
        return Finding(
            "pidfd",
            "missing",
            f"processes can't be held by descriptor: {error}",
            "Use Linux 5.3 or newer, and a container whose seccomp profile allows pidfd_open.",
        )
    return Finding("pidfd", "ok", "processes can be signalled without mistaking one for another")


def _subreaper() -> Finding:
    value = ctypes.c_int()
    try:
        failed = ctypes.CDLL(None, use_errno=True).prctl(
            PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0
        )
        why = os.strerror(ctypes.get_errno()) if failed else ""
    except (AttributeError, OSError) as error:
        why = str(error)
    if why:
        return Finding(
            "subreaper",
            "missing",
            f"orphans of a session can't be collected: {why}",
            "Use Linux 3.4 or newer, with /proc mounted.",
        )
    if not Path("/proc/self/task").is_dir():
        return Finding("subreaper", "missing", "/proc is not mounted", "Mount procfs at /proc.")
    return Finding("subreaper", "ok", "whatever a session leaves behind is found and ended")


def _sockets() -> Finding:
    directory = tempfile.gettempdir()
    try:
        # As for a session: a coordinator's directory, and a kernel's in it.
        with tempfile.TemporaryDirectory(prefix=PREFIX) as runtime, private_directory(runtime):
            pass
    except (OSError, LaunchError) as error:
        return Finding(
            "sockets", "missing", f"{error}", "Set TMPDIR to a short path that you can write to."
        )
    return Finding("sockets", "ok", f"{directory} is short enough for unix sockets, and writable")


def _data(data: Path | None) -> Finding:
    place = data if data is not None else Path(tempfile.gettempdir())
    existing = next(path for path in (place, *place.absolute().parents) if path.exists())
    what = str(data) if data is not None else f"none set: a private one in {place}, until the end"
    try:
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
    except OSError as error:
        return Finding(
            "data",
            "missing",
            f"{what}: {existing} can't be written: {error.strerror}",
            "Choose another directory with --data or data = in replsvc.toml, or make room.",
        )
    free = shutil.disk_usage(existing).free
    detail = f"{what}, {free // MiB} MiB free"
    if free < SPACE_NEEDED_BYTES:
        return Finding("data", "missing", detail, "Make room, or choose another directory.")
    return Finding("data", "ok", detail if existing == place else f"{detail}, made when needed")


async def _environment(name: str, environment: Environment, *, isolated: bool) -> Finding:
    subject, needed = f"environment {name}", name == "default"
    try:
        python = interpreter(environment)
        facts = await probe(python)
        found = await support(python)
    except BackendUnavailableError as error:
        return Finding(subject, "missing", error.message, error.hint, needed)
    except LaunchError as error:
        return Finding(subject, "missing", f"{error}", "Is it a working Python 3?", needed)
    install = f"Install it: {python} -m pip install '{found.wanted}'"
    if found.ipykernel is None:
        detail = f"Python {facts.version} at {python} has no ipykernel"
        return Finding(subject, "missing", detail, install, needed)
    detail = f"Python {facts.version} at {python}, ipykernel {found.ipykernel}"
    stock = not found.tested
    if isolated and (refused := await _refused(python, environment, stock=stock)) is not None:
        return Finding(subject, "missing", f"{detail}: {refused[0]}", refused[1], needed)
    if stock:
        instead = (
            f"{detail}: setup code was tested with {found.wanted}, so ipykernel's own application "
            "runs there, without it, and sessions start slower"
        )
        return Finding(subject, "missing", instead, install, needed=False)
    return Finding(subject, "ok", detail)


async def _refused(python: str, environment: Environment, *, stock: bool) -> tuple[str, str] | None:
    """Why isolated sessions don't run in this environment and what to do: its server is tried."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        runtime = Path(directory)
        sessions = runtime / "sessions"
        sessions.mkdir(mode=0o711)
        async with ForkServers(runtime, sessions).running() as servers:
            try:
                await servers.backend(
                    python, environment.preload, environment.env, stock=stock
                ).missing()
            except EnvironmentUnreadable as error:
                return str(error), error.remedy
            except (LaunchError, LaunchTimeout) as error:
                return f"isolated sessions don't start: {error}", UNPROTECTED
    return None


def _workspace_bound() -> Finding:
    soft = (
        "soft: what a session's files hold is looked at while calls run, and a session with more "
        "than limits.workspace_bytes is ended"
    )
    remedy = "Run the service as root, with loop devices and mkfs.ext4 (e2fsprogs)."
    if os.geteuid() != 0:
        return Finding("workspace bound", "missing", f"{soft} (not root)", remedy, needed=False)
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
            os.close(WorkspaceImages(directory).make(SMALLEST, 0, 0))
    except OSError as error:
        return Finding("workspace bound", "missing", f"{soft} ({error})", remedy, needed=False)
    detail = "hard: an isolated session can't write more than its size"
    return Finding("workspace bound", "ok", detail, needed=False)


async def _isolation() -> tuple[Finding, ...]:
    """Each layer tried for real, in a process of its own."""
    try:
        layers = await trio.to_thread.run_sync(facts.probe)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return (
            Finding("isolation", "missing", f"the layers can't be tried: {error}", UNPROTECTED,
                    needed=False),
        )  # fmt: skip
    return tuple(
        Finding(
            f"isolation {layer.name}",
            "ok" if layer.available else "missing",
            layer.why,
            "" if layer.available else layer.remedy,
            needed=False,
        )
        for layer in layers
    )
