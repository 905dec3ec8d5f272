"""What an environment's Python has: its version, and the packages that a cell can import there."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

import trio

from replsvc.errors import BackendUnavailableError

# Asks for what is really importable: distributions of which a top-level module can be found.
_SOURCE = """
import importlib.metadata as m, importlib.util as u, json, sys
def there(module):
    try:
        return module.isidentifier() and u.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
packages = {}
for dist in m.distributions():
    name = dist.metadata["Name"]
    modules = (dist.read_text("top_level.txt") or "").split()
    if not modules:
        paths = (str(path) for path in dist.files or ())
        tops = {p.split("/")[0].split(".")[0] for p in paths if p.endswith((".py", ".so", ".pyd"))}
        modules = tops - set(sys.argv[1:])
    if name and name not in sys.argv[1:] and any(map(there, modules)):
        packages.setdefault(name, dist.version)
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "packages": packages}))
"""
# A session does not see them, though the Python that runs us may.
_OURS = ("replsvc", "replsvc_kernels", "replsvc_extensions")
PROBE_S = 30.0
# What agents reach for most, first: a description has room for some only.
FAVOURITES = (
    "numpy", "pandas", "scipy", "matplotlib", "scikit-learn", "polars", "pyarrow", "seaborn",
    "plotly", "sympy", "statsmodels", "torch", "requests", "httpx", "beautifulsoup4", "lxml",
    "pillow", "openpyxl", "sqlalchemy", "pydantic",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """Python's version, and its importable distributions as `(name, version)`, favourites first."""

    version: str
    packages: tuple[tuple[str, str], ...]


async def probe(python: str) -> EnvironmentFacts:
    """Ask `python`, in a process of its own. Raises `BackendUnavailableError` when it can't say."""
    try:
        with trio.fail_after(PROBE_S):
            done = await trio.run_process(
                [python, "-I", "-c", _SOURCE, *_OURS],
                capture_stdout=True,
                capture_stderr=True,
                stdin=subprocess.DEVNULL,
                check=False,
                env={"LANG": "C.UTF-8"},
            )
        facts = json.loads(done.stdout)
        packages = {str(name): str(version) for name, version in facts["packages"].items()}
        version = str(facts["version"])
    except (OSError, ValueError, KeyError, TypeError, trio.TooSlowError) as error:
        raise BackendUnavailableError(
            f"{python} can't say what it has: {type(error).__name__} {error}.",
            hint="Check that it is a working Python 3 interpreter.",
        ) from error
    return EnvironmentFacts(version, tuple(sorted(packages.items(), key=_rank)))


def _rank(package: tuple[str, str]) -> tuple[int, str]:
    name = package[0].lower()
    return (FAVOURITES.index(name) if name in FAVOURITES else len(FAVOURITES), name)
