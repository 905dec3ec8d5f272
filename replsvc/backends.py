"""Which backend runs a session's kernel, from its request and the operator's settings."""

from __future__ import annotations

import sys
from pathlib import Path

from replsvc.config import Config, Environment, Isolation
from replsvc.errors import (
    BackendUnavailableError,
    InvalidInputError,
    IsolationUnavailableError,
)
from replsvc.session_values import SessionRequest
from replsvc_kernels.backends.base import Backend

_RANK: dict[Isolation, int] = {"none": 0, "best": 1, "required": 2}


def isolation_of(config: Config, request: SessionRequest) -> Isolation:
    """The isolation in force. Raises for what can't be given: nothing runs unsandboxed silently."""
    asked = request.isolation or config.isolation
    if _RANK[asked] < _RANK[config.isolation]:
        raise InvalidInputError(
            f"isolation {asked!r} is less than the operator's {config.isolation!r}.",
            hint="Leave it out, or ask for more.",
        )
    if asked != "none":
        raise IsolationUnavailableError(
            f"isolation {asked!r} can't be given: this version has no isolation layer yet.",
            hint="To run code as your own user, unprotected, ask for it by name: --isolation none "
            "(isolation = \"none\" in replsvc.toml, Config(isolation='none') in Python).",
        )
    return asked


def environment_of(config: Config, request: SessionRequest) -> Environment:
    """The environment that was asked for by name; raises for one that is not configured."""
    try:
        return config.environment(request.environment)
    except KeyError:
        known = ", ".join(sorted({"default", *config.environments}))
        raise BackendUnavailableError(
            f"there is no environment {request.environment!r}.",
            hint=f"Configured: {known}. Add it as [environments.NAME] with its python.",
        ) from None


def interpreter(environment: Environment) -> str:
    """The environment's Python; raises for one that is not there.

    A virtual environment's python is a link that must not be followed: its place is what makes it
    that environment's.
    """
    if environment.python is None:
        return sys.executable
    path = environment.python.expanduser().absolute()
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.is_file():
        raise BackendUnavailableError(
            f"there is no Python at {path}.",
            hint="Give an interpreter, or the directory of a virtual environment.",
        )
    return str(path)


def backend_of(request: SessionRequest, runtime_dir: Path | None) -> Backend:
    """The backend for this request: our guest, or any installed kernelspec."""
    directory = None if runtime_dir is None else str(runtime_dir)
    if request.kernel is None:
        from replsvc_kernels.backends.process import ProcessBackend  # noqa: PLC0415 - lazy

        return ProcessBackend(directory)
    from replsvc_kernels.backends.provisioner import ProvisionerBackend  # noqa: PLC0415 - lazy

    return ProvisionerBackend(request.kernel, directory)
