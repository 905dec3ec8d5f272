"""`replsvc doctor`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from replsvc.cli.config import ConfigFile
from replsvc.cli.screen import OK, RAISED, guarded


@guarded
def doctor(
    config_file: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check whether sessions can run here, and say what is missing.

    \b
    Exit status: 0 sessions can run, 1 they can't, 2 a setting is wrong, 141 standard output was
    closed.
    """
    import trio  # noqa: PLC0415 - heavy

    from replsvc.doctor import examine, healthy  # noqa: PLC0415 - heavy
    from replsvc.settings import load  # noqa: PLC0415 - heavy

    findings = trio.run(examine, load(config_file).config)
    ok = healthy(findings)
    if as_json:
        checks = [finding.as_json() for finding in findings]
        typer.echo(json.dumps({"ok": ok, "checks": checks}, indent=2))
        return OK if ok else RAISED
    for finding in findings:
        typer.echo(f"{finding.state:<8} {finding.subject}: {finding.detail}")
        if finding.remedy:
            typer.echo(f"{'':<8} -> {finding.remedy}")
    typer.echo("Sessions can run here." if ok else "Sessions can't run here yet: see above.")
    return OK if ok else RAISED
