"""`replsvc config`: the settings in force, and where each of them comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from replsvc.cli.screen import OK, guarded

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings, in place of replsvc.toml in the working directory.",
    ),
]


@guarded
def config(
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show the settings in force, and where each comes from.

    Sources, each over the one before: defaults, replsvc.toml, REPLSVC_* variables
    (REPLSVC_LIMITS__TIMEOUT_S=60), flags of the command. What may be secret is hidden.

    \b
    Exit status: 0 ok, 2 a setting is wrong, 141 standard output was closed.
    """
    from replsvc.settings import load  # noqa: PLC0415 - pydantic takes long

    rows = load(config_file).rows()
    if as_json:
        settings = {row.key: {"value": row.value, "from": row.origin} for row in rows}
        typer.echo(json.dumps(settings, indent=2))
        return OK
    shown = [(row.key, json.dumps(row.value, ensure_ascii=False), row.origin) for row in rows]
    keys = max(len(key) for key, _, _ in shown)
    values = max(len(value) for _, value, _ in shown if len(value) <= 40)
    for key, value, origin in shown:
        typer.echo(f"{key:<{keys}}  {value:<{values}}  {origin}")
    return OK
