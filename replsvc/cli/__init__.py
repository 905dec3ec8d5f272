"""The command line: argv to values, values to the screen. One file a command group.

Only what a command needs is imported, and only when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from replsvc.cli.config import config
from replsvc.cli.doctor import doctor
from replsvc.cli.run import run
from replsvc.cli.serve import serve

app = typer.Typer(
    name="replsvc",
    help="REPL sessions for agents: one kernel process a session, with extensions.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain text: quick, the same everywhere, and NO_COLOR needs no thought
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (run, serve, doctor, config):
    app.command()(_command)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - only for this flag

        typer.echo(f"replsvc {version('replsvc')}")
        raise typer.Exit


@app.callback()
def _top(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of the whole program."""


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its status."""
    _open_standard_descriptors()
    app(prog_name="replsvc")


def _open_standard_descriptors() -> None:
    """Open those of 0 to 2 that are closed, so that no file of ours gets such a number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
