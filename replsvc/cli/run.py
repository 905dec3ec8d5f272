"""`replsvc run`: one cell in a fresh session, from arguments to what `one_shot` takes."""

from __future__ import annotations

import os
import sys
import tokenize
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from replsvc.cli.config import ConfigFile
from replsvc.cli.screen import guarded
from replsvc.errors import InvalidInputError

if TYPE_CHECKING:
    from replsvc.session_values import Mount
    from replsvc.settings import Override

Extensions = Annotated[
    list[str] | None,
    typer.Option(
        "--ext",
        metavar="REF[=JSON]",
        help="An extension: a name, module:object or a path to a .py file, and its opts. Repeat it "
        "for more; they come after those in the settings.",
    ),
]
IsolationOption = Annotated[
    str | None,
    typer.Option("--isolation", metavar="best|required|none", help="How code is kept apart."),
]


@guarded
def run(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE|-]", help="The code; - reads standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Run the code in FILE.")
    ] = None,
    extensions: Extensions = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A Python with ipykernel, or its virtual environment."),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="An environment of the settings.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="NAME", help="An installed kernelspec, such as bash.")
    ] = None,
    mounts: Annotated[
        list[str] | None,
        typer.Option(
            "--mount",
            metavar="SRC[:DST][:rw]",
            help="Show a file or directory in the workspace. Repeat it for more.",
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="local", help="Where the kernel runs.")
    ] = None,
    isolation: IsolationOption = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="S", help="Seconds that the code may run; none lifts the limit."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable for the code. Repeat it for more."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the finished call as JSON, and nothing else.")
    ] = False,
    config_file: ConfigFile = None,
) -> int:
    """Run code in a fresh session, and end it.

    What the code writes comes as it is written, standard output and standard error apart. The
    value of a last expression follows on standard output, a traceback on standard error. Ctrl-C
    interrupts the code, a second one ends it. On a terminal the code may ask: input(), getpass()
    and breakpoint() are answered there. Elsewhere asking is an error at once.

    \b
    Exit status:
      0    ok
      1    the code raised
      2    wrong usage, settings or extensions
      70   the service failed
      124  timeout
      130  interrupted
      137  the code's process was killed, or ended by itself
      141  standard output was closed
      143  ended by SIGTERM (129: by SIGHUP)
    """
    # These are heavy; and what is wrong with the arguments is said before anything runs.
    from replsvc.settings import load  # noqa: PLC0415

    if python is not None and environment is not None:
        raise InvalidInputError("--python and --environment exclude each other.")
    variables, shown = _variables(env or []), _mounts(mounts or [])
    loaded = load(config_file, _overrides(extensions, python, isolation, timeout))
    source = _source(code, file, loaded.config.limits.max_code_bytes)

    from replsvc.cli.one_shot import Job, run_job  # noqa: PLC0415

    fields = {
        "environment": environment,
        "kernel": kernel,
        "backend": backend,
        "env": variables,
    }
    return run_job(Job(loaded.config, source, fields, shown, as_json=as_json))


def _overrides(
    extensions: list[str] | None, python: str | None, isolation: str | None, timeout: str | None
) -> list[Override]:
    from replsvc.settings import Override  # noqa: PLC0415 - heavy

    given = [
        Override("environments.default.python", python, "--python"),
        Override("isolation", isolation, "--isolation"),
        Override("limits.timeout_s", timeout, "--timeout"),
        Override("extensions", extensions, "--ext", add=True),
    ]
    return [override for override in given if override.value is not None]


def _source(code: str | None, file: Path | None, limit: int) -> str:
    """The code to run, wherever it is; raises `InvalidInputError`."""
    if code is not None and file is not None:
        raise InvalidInputError("there is CODE and -f FILE.", hint="Give one of them.")
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as stream:
                return _decoded(stream.read(limit + 1), str(file), limit)
        except OSError as error:
            raise InvalidInputError(
                f"{file} can't be read: {error.strerror}.", hint="Give a file with code."
            ) from None
    if code is None and file is None:
        raise InvalidInputError(
            "there is no code to run.",
            hint="Give it as an argument (replsvc run '1+1'), in a file (-f FILE), "
            "or on standard input (replsvc run - < FILE).",
        )
    if code is not None and code != "-":
        return _decoded(os.fsencode(code), "CODE", limit)
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidInputError(
            "standard input is a terminal.",
            hint="Pipe the code in (replsvc run - < FILE), or give it as an argument.",
        )
    return _decoded(sys.stdin.buffer.read(limit + 1), "standard input", limit)


def _decoded(data: bytes, where: str, limit: int) -> str:
    """Source as Python reads it: UTF-8, or what its coding comment says; line ends are kept."""
    if len(data) > limit:
        raise InvalidInputError(
            f"{where} has more than {limit} bytes.",
            hint="Raise limits.max_code_bytes, or read large data from a file.",
        )
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{where} is not text: {error}.", hint="Write it in UTF-8, or name its coding."
        ) from None


def _variables(given: list[str]) -> dict[str, str]:
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInputError(f"--env: {text!r} is not NAME=VALUE.")
        variables[name] = value
    return variables


def _mounts(given: list[str]) -> list[Mount]:
    from pydantic import ValidationError  # noqa: PLC0415 - heavy

    from replsvc.session_values import Mount  # noqa: PLC0415 - heavy

    found = []
    for text in given:
        try:
            found.append(Mount.parse(text))
        except ValueError as error:
            # Of pydantic's error people need the reason only.
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise InvalidInputError(f"--mount: {reason}.", hint="Write SRC[:DST][:rw].") from None
    return found
