"""`replsvc serve`: the HTTP service, from arguments to what `serving` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replsvc.cli.config import ConfigFile
from replsvc.cli.run import Extensions, IsolationOption
from replsvc.cli.screen import guarded


@guarded
def serve(
    host: Annotated[
        str | None, typer.Option(metavar="HOST", help="Where to listen [default: 127.0.0.1].")
    ] = None,
    port: Annotated[
        str | None, typer.Option(metavar="PORT", help="0 takes a free one [default: 8747].")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep the log here; without it, until the end only."),
    ] = None,
    extensions: Extensions = None,
    isolation: IsolationOption = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help='Write {"url", "key"} here (mode 0600) once requests are answered; it is removed '
            "at the end. The key is null where the settings have keys.",
        ),
    ] = None,
    config_file: ConfigFile = None,
) -> int:
    """Serve sessions over HTTP until SIGTERM or Ctrl-C.

    Prints its address and, on a loopback address when the settings have no keys, a key for this
    run. On SIGTERM it takes no more work, ends its sessions and exits within
    service.stop_deadline_s; on a second one at once.

    \b
    Exit status:
      0    stopped as asked
      2    wrong usage, settings or extensions
      70   the service failed: the port is in use, the data directory can't be
           used, sessions did not end in time
      130  ended at once by a second Ctrl-C (143: by SIGTERM)
    """
    from replsvc.settings import Override, load  # noqa: PLC0415 - heavy

    given = [
        Override("service.host", host, "--host"),
        Override("service.port", port, "--port"),
        Override("data", data, "--data"),
        Override("isolation", isolation, "--isolation"),
        Override("extensions", extensions, "--ext", add=True),
    ]
    loaded = load(config_file, [override for override in given if override.value is not None])

    from replsvc.cli.serving import run_service  # noqa: PLC0415 - heavy

    return run_service(loaded, ready_file)
