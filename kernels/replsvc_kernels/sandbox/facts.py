"""What this machine can give, layer by layer: each tried for real in a child, and undone with it.

Run in a process of one thread (`probe` starts one). A layer that is not there says why, and what
to do about it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from . import (
    _libc,
    cgroups,
    mounts,
    namespaces,
    remedies,
    server_root,
    session_root,
)


@dataclass(frozen=True)
class Layer:
    """A layer of isolation: whether this machine gives it, why (not), and the remedy if not."""

    name: str
    available: bool
    why: str
    remedy: str = ""


NAMES = (
    "user_namespace", "user_ids", "namespaces", "network", "read_only_root", "private_root",
    "cgroup_memory", "cgroup_cpu", "cgroup_pids", "seccomp", "landlock",
)  # fmt: skip

# The ids that are tried as root; nobody is asked whether they are free, and nothing is left of it.
_TRIED_ID = 2_000_000_000


def probe(python: str = sys.executable, timeout_s: float = 60.0) -> tuple[Layer, ...]:
    """Every layer of `NAMES`, tried in a process of its own, which takes about 200 ms.

    Raises `OSError`, `subprocess.SubprocessError` when that process does not run.
    """
    if sys.platform != "linux":
        why = f"{sys.platform} has none"
        remedy = remedies.no_linux(remedies.read())
        return tuple(Layer(name, False, why, remedy) for name in NAMES)
    # By path, and under a name of its own: whoever imported us may have found us anywhere.
    start = "import sys; sys.path.append(sys.argv[1]); import sandbox.facts; sandbox.facts.main()"
    directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = (python, "-I", "-c", start, directory)
    done = subprocess.run(  # noqa: S603 - our own file
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=True
    )
    return tuple(Layer(**layer) for layer in json.loads(done.stdout))


def main() -> None:
    """Write the layers as JSON to stdout, for `probe`."""
    json.dump([asdict(layer) for layer in probe_here()], sys.stdout)


def probe_here() -> tuple[Layer, ...]:
    """`probe` without a process in between; ours has one thread. Raises `RuntimeError`."""
    namespaces.assert_one_thread()
    machine = remedies.read()
    remedy = partial(remedies.no_namespace, machine)
    maps, ids = _ids(machine)
    return (
        _tried("user_namespace", lambda: _enter(namespaces.maps_for_one_id()), remedy),
        ids,
        _tried("namespaces", lambda: _namespaces(maps), remedy),
        _tried("network", lambda: _network(maps), remedy),
        _tried("read_only_root", lambda: _read_only_root(maps), remedy),
        _tried("private_root", lambda: _private_root(maps), partial(remedies.no_root, machine)),
        *_cgroups(machine),
        _seccomp(),
        _landlock(),
    )


# Trying


def _tried(name: str, action: Callable[[], str], remedy: Callable[[OSError], str]) -> Layer:
    """Run `action` in a child and turn what it says or raises into a layer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = [True, action(), ""]
        except OSError as error:
            answer = [False, error.strerror or str(error), remedy(error)]
        except BaseException as error:  # noqa: BLE001 - a child of ours always answers
            answer = [False, f"{type(error).__name__}: {error}", "report this"]
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    if not said:
        return Layer(name, False, "the process that tried it was killed", "report this")
    available, why, what = json.loads(said)
    return Layer(name, available, why, what)


def _enter(maps: namespaces.IdMaps) -> str:
    namespaces.enter_user_namespace(maps)
    return "can be entered"


def _best_maps() -> tuple[namespaces.IdMaps, str]:
    if os.geteuid() == 0:
        return namespaces.maps_for_root(_TRIED_ID, stays=not namespaces.may_mount()), ""
    try:
        return namespaces.maps_from_subordinate_ids(), ""
    except LookupError as error:
        return namespaces.maps_for_one_id(), str(error)


def _ids(machine: remedies.Machine) -> tuple[namespaces.IdMaps, Layer]:
    """Which maps work here, and whether each session can have an id of its own."""
    maps, why = _best_maps()
    if not why:
        count = len(maps.sessions)
        said = (
            f"{count} ids, as {'root' if maps.how == namespaces.ROOT else 'newuidmap gives them'}"
        )
        layer = _tried("user_ids", lambda: _enter(maps) and said, lambda _: "")
        if layer.available:
            return maps, layer
        why = layer.why
    said = f"{why}; all sessions run as one user, kept apart by namespaces"
    remedy = remedies.no_ids(machine, why)
    return namespaces.maps_for_one_id(), Layer("user_ids", False, said, remedy)


def _namespaces(maps: namespaces.IdMaps) -> str:
    _enter(maps)
    new = namespaces.NEWPID | namespaces.NEWNS | namespaces.NEWIPC | namespaces.NEWUTS
    namespaces.unshare(new | namespaces.NEWCGROUP)
    return "pid, mount, ipc, uts and cgroup"


def _network(maps: namespaces.IdMaps) -> str:
    _enter(maps)
    namespaces.unshare(namespaces.NEWNET)
    namespaces.loopback_up()
    return "none but its own loopback"


def _read_only_root(maps: namespaces.IdMaps) -> str:
    _enter(maps)
    namespaces.unshare(namespaces.NEWNS)
    if mounts.has_trees():
        return "with all that is mounted below it, at once"
    return "mount by mount: this Linux is older than 5.12, or a policy forbids newer calls"


def _private_root(maps: namespaces.IdMaps) -> str:
    """A server's root and a session's in it, with proc, devpts and tmpfs, in a child of a child."""
    directory = tempfile.mkdtemp(prefix="replsvc-")
    try:
        # The other user must get through.
        os.chmod(directory, 0o755)  # noqa: S103
        for name in ("root", "all", "all/work", "all/run"):
            os.mkdir(f"{directory}/{name}", 0o755)
        trying = _tried("", lambda: _built(maps, directory), lambda _: "")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if not trying.available:
        raise OSError(errno.EPERM, trying.why)
    return trying.why


def _built(maps: namespaces.IdMaps, directory: str) -> str:
    as_root = maps.how == namespaces.ROOT and namespaces.may_mount()
    if not as_root:
        namespaces.enter_user_namespace(maps)
    namespaces.unshare(namespaces.NEWNS)
    root = server_root.build(f"{directory}/root", (), f"{directory}/all")
    if as_root:
        namespaces.enter_user_namespace(maps)

    def enter() -> str:
        namespaces.unshare(namespaces.NEWNS)
        server_root.enter(root)
        first = namespaces.FIRST_SESSION_ID
        session_root.build(root, session_root.SessionRoot(first, "work", "run", 1 << 20))
        return "read-only, with /proc, /tmp, /dev/shm and /dev/pts of its own"

    namespaces.new_pid_namespace_for_children()
    inner = _tried("", enter, lambda _: "")
    if not inner.available:
        raise OSError(errno.EPERM, inner.why)
    return inner.why


def _cgroups(machine: remedies.Machine) -> list[Layer]:
    remedy = remedies.no_groups(machine)
    found = frozenset[str]()
    try:
        root = cgroups.CgroupRoot.detect(prefix="replsvc-facts")
    except cgroups.CgroupsUnavailableError as error:
        missing = error.missing
    else:
        missing, found = root.missing, root.controllers
        root.close()
    return [
        Layer(f"cgroup_{name}", True, "limited and counted for each session")
        if name in found
        else Layer(f"cgroup_{name}", False, missing[name], remedy)
        for name in ("memory", "cpu", "pids")
    ]


def _seccomp() -> Layer:
    try:
        # A filter at address 0: a kernel that knows filters says that there is none.
        _libc.prctl(22, 2, 0)
    except OSError as error:
        if error.errno == errno.EFAULT:
            return Layer("seccomp", True, "filters can be set")
        return Layer("seccomp", False, os.strerror(error.errno or 0),
                     "use a kernel that is built with CONFIG_SECCOMP_FILTER")  # fmt: skip
    raise AssertionError("the kernel set a filter that is not there")


def _landlock() -> Layer:
    try:
        version = _libc.syscall("landlock_create_ruleset", ctypes.c_void_p(), 0, 1)
    except OSError as error:
        disabled = error.errno == errno.EOPNOTSUPP
        remedy = "boot with lsm=landlock,..." if disabled else "use Linux 5.13 or newer"
        why = "built in but off" if disabled else os.strerror(error.errno or 0)
        return Layer("landlock", False, why, remedy)
    return Layer("landlock", True, f"version {version}")
