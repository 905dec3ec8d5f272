"""Start the fork server: `PYTHON .../forkserver FD`, FD being its end of a SEQPACKET socket.

Siblings, the guest and the sandbox are loaded under private package names, as the guest does it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = {
    "_replsvc_forkserver": HERE,
    "_replsvc_guest": os.path.join(os.path.dirname(HERE), "guest"),
    "_replsvc_sandbox": os.path.join(os.path.dirname(HERE), "sandbox"),
}


def main() -> int:
    """Serve until the host goes away; the exit status is 0, or 3 when it could not start."""
    sys.path[:] = [entry for entry in sys.path if entry and os.path.abspath(entry) != HERE]
    fd = int(sys.argv[1])
    sys.argv[:] = [""]
    for name, directory in PACKAGES.items():
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
        )
        if spec is None or spec.loader is None:
            return 3
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    server = importlib.import_module("_replsvc_forkserver.server")
    return int(server.main(fd))


if __name__ == "__main__":
    sys.exit(main())
