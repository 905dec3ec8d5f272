"""A session's namespaces and root around a function, in the order that a fork server goes through.

It runs in the processes that inside.py starts: nothing here touches the tests' own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from replsvc_kernels.sandbox import (
    _libc,
    credentials,
    mounts,
    namespaces,
    server_root,
    session_root,
)

# Nobody on this machine has these ids; they are in no list of users.
USER = 64_321
FIRST = 1_900_000_000
HOW = (namespaces.ROOT, namespaces.SINGLE, namespaces.SUBORDINATE)
DUMPABLE = 4


def forked(action: Callable[[], Any]) -> Any:
    """What `action` returns in a child; its exception as an `AssertionError` here."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer: dict[str, Any] = {}
        try:
            answer["found"] = action()
        except BaseException:
            answer["raised"] = traceback.format_exc()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    assert said, f"the child ended with status {status}"
    answer = json.loads(said)
    if "raised" in answer:
        raise AssertionError(answer["raised"])
    return answer["found"]


def become_user() -> None:
    """From root to a user that owns nothing; anybody else stays who they are."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        # Else our own files in /proc would be root's.
        _libc.prctl(DUMPABLE, 1)


def give_user_a_range() -> None:
    """In a mount namespace of our own the machine's files say that `USER` has a range of ids."""
    namespaces.unshare(namespaces.NEWNS)
    mounts.make_private()
    files = {
        "/etc/passwd": f"tester:x:{USER}:{USER}::/nonexistent:/bin/sh\n",
        "/etc/subuid": f"tester:{FIRST}:1000\n",
        "/etc/subgid": f"tester:{FIRST}:1000\n",
    }
    for path, text in files.items():
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            os.chmod(file.name, 0o644)
            mounts.cover(file.name, path)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that every user can reach, which pytest's are not."""
    path = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def inside_a_session(
    how: str,
    attempt: Callable[[], Any],
    *,
    trees: bool = True,
    environment: tuple[str, ...] = (),
    prepare: Callable[[Path], dict[str, Any]] = lambda _: {},
    after: Callable[[Path], Any] = lambda _: None,
) -> Any:
    """What `attempt` finds in a session, or `[that, what after finds]` outside when it ended.

    There is a neighbour's workspace beside it. `prepare` gets the sessions' directory and gives
    parts of `SessionRoot`.
    """

    def all_of_it() -> Any:
        if how == namespaces.SUBORDINATE:
            give_user_a_range()
        if how != namespaces.ROOT:
            become_user()
        with directory() as place:
            return _beside_a_neighbour(how, place, trees, environment, prepare, attempt, after)

    return forked(all_of_it)


def _beside_a_neighbour(
    how: str,
    place: Path,
    trees: bool,
    environment: tuple[str, ...],
    prepare: Callable[[Path], dict[str, Any]],
    attempt: Callable[[], Any],
    after: Callable[[Path], Any],
) -> Any:
    for name in ("root", "all/mine/work", "all/mine/run", "all/theirs/work"):
        (place / name).mkdir(parents=True)
    (place / "all/theirs/work/secret").write_text("a neighbour's")
    if how == namespaces.ROOT:
        user, group = namespaces.maps_for_root(FIRST).outside(namespaces.FIRST_SESSION_ID)
        for name in ("work", "run"):
            os.chown(place / "all/mine" / name, user, group)
    parts = {"work": "mine/work", "run": "mine/run", "tmp_bytes": 1 << 20, **prepare(place)}
    found = forked(lambda: _served(how, place, trees, environment, parts, attempt))
    return [found, after(place)]


def _served(
    how: str,
    place: Path,
    trees: bool,
    environment: tuple[str, ...],
    parts: dict[str, Any],
    attempt: Callable[[], Any],
) -> Any:
    if not trees:
        mounts.has_trees = lambda: False
    arguments = (str(place / "root"), environment, str(place / "all"))
    if how == namespaces.ROOT:
        namespaces.unshare(namespaces.NEWNS)
        root = server_root.build(*arguments)
        namespaces.enter_user_namespace(namespaces.maps_for_root(FIRST))
    else:
        maps = (
            namespaces.maps_for_one_id()
            if how == namespaces.SINGLE
            else namespaces.maps_from_subordinate_ids()
        )
        namespaces.enter_user_namespace(maps)
        namespaces.unshare(namespaces.NEWNS)
        root = server_root.build(*arguments)
    namespaces.new_pid_namespace_for_children()

    def server() -> Any:
        namespaces.unshare(namespaces.NEWNS)
        server_root.enter(root)
        home = namespaces.open_own("pid")
        namespaces.new_pid_namespace_for_children()
        init = os.fork()
        if init == 0:
            _libc.prctl(DUMPABLE, 0)
            signal.pause()
            os._exit(0)
        try:
            return forked(session)
        finally:
            namespaces.setns(home, namespaces.NEWPID)
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)
            if how == namespaces.SUBORDINATE:
                give("/session/all/mine", ("work", "run"), 0)

    def session() -> Any:
        first = namespaces.FIRST_SESSION_ID
        namespaces.enter_session_namespaces("session")
        namespaces.enter_cgroup_namespace()
        session_root.build(root, session_root.SessionRoot(user=first, **parts))
        if how == namespaces.SUBORDINATE:
            # The host could not: these ids are the server's to give, and to take back.
            give("/session", ("work", "run"), first)
        os.chdir(session_root.WORK)
        credentials.drop(first, first, single=how == namespaces.SINGLE)
        assert_sandboxed()
        return attempt()

    return forked(server)


def give(parent: str, names: tuple[str, ...], owner: int) -> None:
    for name in names:
        for place, _, files in os.walk(f"{parent}/{name}"):
            for path in (place, *(f"{place}/{file}" for file in files)):
                os.chown(path, owner, owner, follow_symlinks=False)


def assert_sandboxed() -> None:
    """Nothing is tried unless this holds: an id of our own, few processes, no rights."""
    assert os.getuid() == namespaces.FIRST_SESSION_ID, "not tried: not the session's user"
    assert os.getpid() < 10, "not tried: not in a pid namespace of its own"
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    assert len(pids) < 5, "not tried: other processes are in sight"
    status = Path("/proc/self/status").read_text()
    assert "CapEff:\t0000000000000000" in status, "not tried: there are rights left"


def attempted(action: Callable[[], Any]) -> str:
    """The name of the error that `action` meets, or `done`."""
    try:
        action()
    except OSError as error:
        return OSError.__name__ if error.errno is None else os.strerror(error.errno)
    return "done"


def call(name: str, *arguments: Any) -> str:
    """`attempted` for a system call."""
    return attempted(lambda: _libc.syscall(name, *arguments))


# Loaded while files can still be read: as the other user they may be out of reach.
assert ctypes
assert sys
