"""Which directories an environment's interpreter needs: asked of itself, and no more than that."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence

# What every session sees of the machine, where it is there. Not all of /etc, /var, /opt, /home.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store",
    "/etc/alternatives", "/etc/ca-certificates.conf", "/etc/fonts", "/etc/host.conf",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias",
    "/etc/localtime", "/etc/magic", "/etc/magic.mime", "/etc/mime.types", "/etc/os-release",
    "/etc/pki/ca-trust/extracted", "/etc/pki/tls/cert.pem", "/etc/pki/tls/certs",
    "/etc/protocols", "/etc/services", "/etc/ssl/cert.pem", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/terminfo", "/etc/timezone",
)  # fmt: skip

# Never shown as a whole, however an environment points there.
_WHOLE = frozenset(
    ("/", "/boot", "/dev", "/etc", "/home", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
     "/srv", "/sys", "/tmp", "/var", "/var/tmp", "/Users")  # noqa: S108 - they are refused here
)  # fmt: skip

# Modules of the standard library that load what lies outside of it.
_LOADING = ("_bz2", "_ctypes", "_curses", "_dbm", "_decimal", "_hashlib", "_lzma", "_sqlite3",
            "_ssl", "_tkinter", "_uuid", "pyexpat", "readline", "zlib")  # fmt: skip

_QUESTION = """
import json, os, site, sys, sysconfig
for name in %r:
    try:
        __import__(name)
    except ImportError:
        pass
found = {
    "executable": sys.executable,
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "paths": [p for p in sys.path if p] + list(sysconfig.get_paths().values()),
    "packages": [],
    "libraries": [],
}
for name, module in list(sys.modules.items()):
    if name.startswith("__editable__"):
        found["packages"] += [str(p) for p in getattr(module, "MAPPING", {}).values()]
try:
    with open("/proc/self/maps") as maps:
        lines = [line.split(None, 5) for line in maps]
    found["libraries"] = sorted({l[5].strip() for l in lines if len(l) > 5 and l[5][0] == "/"})
except OSError:
    pass
print("\\n" + json.dumps(found))
"""


class EnvironmentRefused(ValueError):  # noqa: N818 - said as in: the environment was refused
    """An interpreter that can't be shown to sessions; the message says why and what to do."""


def read_only_paths(python: str, timeout_s: float = 60.0) -> tuple[str, ...]:
    """The paths outside of `SYSTEM` that `python`, an interpreter's path, needs to run.

    Its prefixes, the links on the way to them, the packages that its site-packages point to
    elsewhere (of a directory on `sys.path`, only what can be imported from it), libraries. Runs the
    interpreter for some 50 ms. Raises `TimeoutError` when it does not answer, and
    `EnvironmentRefused` when that fails otherwise, or when a path would show a home directory, all
    of /etc, /var and the like.
    """
    found = _ask(python, timeout_s)
    whole = [path for path in found["prefixes"] if not _covered(path, SYSTEM)]
    needed = [*whole, python, found["executable"][0]]
    for path in found["paths"]:
        if os.path.exists(path) and not _covered(path, (*SYSTEM, *whole)):
            needed += _importable(path)
    needed += [path for path in found["packages"] if os.path.exists(path)]
    needed += [path for path in found["libraries"] if os.path.exists(path)]
    chosen: list[str] = []
    for path in needed:
        for one in _and_what_it_links_to(os.path.abspath(path)):
            if not _covered(one, (*SYSTEM, *chosen)):
                chosen.append(_checked(one, python))
    return tuple(path for path in chosen if not _covered(path, [c for c in chosen if c != path]))


def _ask(python: str, timeout_s: float) -> dict[str, list[str]]:
    # Isolated: neither our environment's variables nor the user's own packages are in it.
    command = (python, "-I", "-c", _QUESTION % (_LOADING,))
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own environment
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True,
            env={"PATH": os.defpath}, cwd="/",
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{python} did not answer within {timeout_s:g} s") from None
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", None) or b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2] or str(error)
        raise EnvironmentRefused(f"{python} does not run: {last}") from None
    return {name: [value] if isinstance(value, str) else value for name, value in answer.items()}


def _importable(path: str) -> list[str]:
    """What can be imported from a directory: not the secrets beside it, should it be a checkout."""
    if not os.path.isdir(path):
        return [path]
    chosen = []
    with os.scandir(path) as entries:
        for entry in entries:
            stem, dot, suffix = entry.name.partition(".")
            if entry.is_dir():
                # the last: shared libraries that a wheel brought along
                if entry.name.endswith((".dist-info", ".egg-info", ".libs")) or (
                    stem.isidentifier() and not dot and _has_modules(entry.path)
                ):
                    chosen.append(entry.path)
            elif stem.isidentifier() and suffix.endswith(("py", "so")):
                chosen.append(entry.path)
    return sorted(chosen)


def _has_modules(path: str) -> bool:
    try:
        return any(name.endswith((".py", ".so")) for name in os.listdir(path))
    except OSError:
        return False


def _and_what_it_links_to(path: str) -> list[str]:
    """A path and, where a part of it is a link, the path that this leads to, and so on."""
    found = [path]
    parts, place = path.split("/")[1:], ""
    while parts and len(found) < 40:
        place = f"{place}/{parts.pop(0)}"
        if os.path.islink(place):
            target = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
            found.append(os.path.join(target, *parts))
            parts, place = found[-1].split("/")[1:], ""
    return found


def _covered(path: str, by: Iterable[str]) -> bool:
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in by)


def _checked(path: str, python: str) -> str:
    if path in _WHOLE or _covered(_home(), (path,)):
        raise EnvironmentRefused(
            f"the environment of {python} needs {path}, and sessions may not see all of that; "
            f"make a virtual environment in a directory of its own"
        )
    return path


def _home() -> str:
    return os.path.expanduser("~")


def check_apart(paths: Sequence[str], private: str) -> None:
    """Raise `EnvironmentRefused` when one of `paths` shows `private`, or lies in it."""
    hidden = os.path.realpath(private)
    for path in paths:
        real = os.path.realpath(path)
        if _covered(hidden, (real,)) or _covered(real, (hidden,)):
            raise EnvironmentRefused(
                f"{path} and the sessions' directory {private} may not lie in each other; "
                f"move one of them"
            )
