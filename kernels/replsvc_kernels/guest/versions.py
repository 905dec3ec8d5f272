"""The versions of ipykernel that our guest was tested with: with others it does not run.

As a program it says in JSON what this Python has: `{"ipykernel": VERSION | null, "tested": BOOL,
"wanted": REQUIREMENT}`.
"""

from __future__ import annotations

import re
import sys

# The matrix of tests (noxfile.py) has the first, one between, and the newest before the end.
FIRST, BEFORE = (6, 29), (8,)
WANTED = f"ipykernel>={'.'.join(map(str, FIRST))},<{'.'.join(map(str, BEFORE))}"


class Untested(RuntimeError):  # noqa: N818 - it says what the version is
    """Raised where another version of ipykernel is installed: `untested` is that version."""

    def __init__(self, version: str) -> None:
        super().__init__(
            f"{sys.executable} has ipykernel {version}, and isolated sessions and setup code were "
            f"tested with {WANTED} only. Install that: {sys.executable} -m pip install '{WANTED}'"
        )
        self.untested = version


def is_tested(version: str) -> bool:
    """Whether our guest runs with this version of ipykernel."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return found is not None and FIRST <= (int(found[1]), int(found[2] or 0)) < BEFORE


def installed() -> str:
    """The version of ipykernel that is imported here. Raises `ImportError`."""
    import ipykernel

    return str(vars(ipykernel)["__version__"])


def check() -> None:
    """Raise `Untested` for another version, `ImportError` for none."""
    if not is_tested(version := installed()):
        raise Untested(version)


def main() -> None:
    """Print what the module says."""
    import importlib.metadata
    import json

    try:
        version = importlib.metadata.version("ipykernel")
    except importlib.metadata.PackageNotFoundError:
        version = None
    tested = version is not None and is_tested(version)
    print(json.dumps({"ipykernel": version, "tested": tested, "wanted": WANTED}))


if __name__ == "__main__":
    main()
