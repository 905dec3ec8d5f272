"""What a process behind Landlock tries; run by inside.py."""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attempts_seccomp import without

from replsvc_kernels.sandbox import landlock

LIBRARIES = ("/usr", "/lib", "/lib64")


def attempt(action: Callable[[], Any]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def run(program: Path) -> None:
    status = os.waitpid(os.posix_spawn(str(program), [program.name], {}), 0)[1]
    assert status == 0, status


def files(place: str) -> dict[str, str]:
    """`place` has the directories mine (read-write), shared (read-only) and hidden."""
    mine, shared, hidden = (Path(place, name) for name in ("mine", "shared", "hidden"))
    open_before = (hidden / "file").open()
    landlock.restrict([str(mine)], [str(shared), *filter(os.path.exists, LIBRARIES)])
    return {
        "read mine": attempt((mine / "file").read_text),
        "write mine": attempt(lambda: (mine / "new").write_text("x")),
        "make a directory": attempt((mine / "directory").mkdir),
        "make a fifo": attempt(lambda: os.mkfifo(mine / "fifo")),
        "move between mine": attempt(
            lambda: (mine / "new").rename(mine / "directory" / "new"),
        ),
        "truncate mine": attempt(lambda: os.truncate(mine / "file", 0)),
        "remove mine": attempt((mine / "file").unlink),
        "read shared": attempt((shared / "file").read_text),
        "list shared": attempt(lambda: list(shared.iterdir())),
        "run shared": attempt(lambda: run(shared / "true")),
        "write shared": attempt(lambda: (shared / "file").write_text("x")),
        "truncate shared": attempt(lambda: os.truncate(shared / "file", 0)),
        "remove shared": attempt((shared / "file").unlink),
        "new in shared": attempt(lambda: (shared / "new").write_text("x")),
        "read hidden": attempt((hidden / "file").read_text),
        "list hidden": attempt(lambda: list(hidden.iterdir())),
        "truncate hidden": attempt(lambda: os.truncate(hidden / "file", 0)),
        "run hidden": attempt(lambda: run(hidden / "true")),
        "link hidden": attempt(lambda: os.link(hidden / "file", mine / "linked")),
        "read hidden by a link of mine": attempt(
            lambda: ((mine / "link").symlink_to(hidden / "file"), (mine / "link").read_text())
        ),
        "read hidden by /proc": attempt(lambda: Path(f"/proc/self/root{hidden}/file").read_text()),
        "move hidden here": attempt(lambda: (hidden / "file").rename(mine / "moved")),
        "move mine away": attempt(
            lambda: (mine / "directory" / "new").rename(hidden / "new"),
        ),
        "read what was open": attempt(open_before.read),
        "open what is not there yet": attempt(lambda: (hidden / "later").write_text("x")),
    }


def replaced(place: str) -> dict[str, str]:
    """Rules follow the directory, not its name."""
    mine, elsewhere = Path(place, "mine"), Path(place, "elsewhere")
    to_child, to_parent = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.read(to_child[0], 1)
        mine.rename(elsewhere)
        mine.mkdir()
        (mine / "file").write_text("another")
        os.write(to_parent[1], b"x")
        os._exit(0)
    landlock.restrict([str(mine)], [])
    os.write(to_child[1], b"x")
    os.read(to_parent[0], 1)
    os.waitpid(pid, 0)
    return {
        "by its new name": attempt((elsewhere / "file").read_text),
        "another by its old name": attempt((mine / "file").read_text),
    }


def outsiders() -> dict[str, str]:
    name = f"\0outsider-{os.getpid()}"
    ready, go = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.close(go[1])
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)

    def connect(address: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address)

    before = {"connect": attempt(lambda: connect(name)), "signal": attempt(lambda: os.kill(pid, 0))}
    landlock.restrict([], [])
    after = {"connect": attempt(lambda: connect(name)), "signal": attempt(lambda: os.kill(pid, 0))}
    inside = os.fork()
    if inside == 0:
        signal.pause()
    own = attempt(lambda: os.kill(inside, signal.SIGKILL))
    os.waitpid(inside, 0)
    os.close(go[1])
    os.waitpid(pid, 0)
    return {
        **{f"{name} before": result for name, result in before.items()},
        **{f"{name} after": result for name, result in after.items()},
        "signal own child": own,
    }


def tcp(allowed: bool) -> dict[str, str]:
    landlock.restrict([], [], tcp=allowed)
    with socket.socket() as server, socket.socket() as client:
        bound = attempt(lambda: server.bind(("127.0.0.1", 0)))
        # Nobody listens on a port that is only bound: where we get that far, we are refused.
        port = server.getsockname()[1] or 9
        return {"bind": bound, "connect": attempt(lambda: client.connect(("127.0.0.1", port)))}


def terminal() -> bool:
    landlock.restrict(["/dev"], [])
    _leader, follower = os.openpty()
    return os.isatty(follower)


def status() -> str:
    landlock.restrict([], ["/proc"])
    return Path("/proc/self/status").read_text()


def a_missing_path(place: str) -> list[str]:
    missing = attempt(lambda: landlock.restrict([f"{place}/missing"], []))
    return [missing, attempt(Path(place, "hidden", "file").read_text)]


def no_landlock_in_this_kernel(answer: int, place: str) -> list[Any]:
    without("landlock_create_ruleset", answer=answer)
    return [landlock.restrict([], []), attempt(Path(place, "hidden", "file").read_text)]


def knows(rights: landlock.Rights) -> str:
    """Whether this kernel takes a ruleset of these bits."""
    return attempt(lambda: os.close(landlock._create(rights, tcp=False)))


def second_layer(place: str) -> dict[str, str]:
    """A layer can only take away."""
    mine, shared = Path(place, "mine"), Path(place, "shared")
    landlock.restrict([str(mine)], [])
    landlock.restrict([str(mine)], [str(shared)])
    return {
        "mine": attempt((mine / "file").read_text),
        "shared": attempt((shared / "file").read_text),
    }
