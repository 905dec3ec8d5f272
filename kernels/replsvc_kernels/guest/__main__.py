"""Start the guest: `PYTHON .../guest FD`, where FD is the guest's end of a SEQPACKET socket.

The siblings are loaded under a private package name, so that nothing of ours stands on `sys.path`;
user code finds there what a notebook has: the working directory, then the environment's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

PACKAGE = "_replsvc_guest"


def main() -> int:
    """Serve until told to stop; the exit status is 0, or 3 when the kernel could not start."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    fd = int(sys.argv[1])
    # what `python -i` has: the descriptor is no argument of the user's program
    sys.argv[:] = [""]
    spec = importlib.util.spec_from_file_location(
        PACKAGE,
        os.path.join(here, "__init__.py"),
        submodule_search_locations=[here],
    )
    if spec is None or spec.loader is None:
        return 3
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    link = importlib.import_module(PACKAGE + ".link").HostLink(fd)
    try:
        app = importlib.import_module(PACKAGE + ".app").build()
        app.plumb(link)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        link.refuse(error)
        return 3
    app.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
