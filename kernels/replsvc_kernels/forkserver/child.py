"""What a forked child does to become a session's kernel: isolation, then sockets, then serving.

The order matters, each step needs what the next takes away: namespaces, mounts, cgroup, limits, ids
and capabilities, Landlock, seccomp. Only then are the host's key read and sockets made.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any, NoReturn

from _replsvc_sandbox import (
    belongings,
    cgroups,
    close_fds,
    credentials,
    landlock,
    mounts,
    namespaces,
    rlimits,
    seccomp,
    server_root,
    session_root,
)

# What arrives, in this order, and then the cgroups' files, the workspace's mount unless the request
# names it, and other mounts.
REQUEST, GUEST, OUT, ERR = range(4)


def become_kernel(
    app: Any, root: Any, fds: list[int], single: bool, views: tuple[int, int] | None
) -> None:
    """Never returns: the process ends as a kernel. `root` is the server's `ServerRoot`.

    Without an `app` the request names a program, which is a kernel that is not ours.

    `views` are mount namespaces, the one that shows the machine and the server's own, where the
    host can't make mounts for a session: then they are made here.

    The request is a file that only this process reads: the server, whose memory every later kernel
    inherits, never has a session's variables in it. A step that fails is told to the host through
    the guest's socket.
    """
    from _replsvc_guest.link import HostLink

    link = None
    try:
        with open(fds[REQUEST], "rb", buffering=0) as file:
            file.seek(0)
            request = json.loads(file.readall())
        joins = fds[ERR + 1 : ERR + 1 + request["joins"]]
        os.dup2(fds[OUT], 1)
        os.dup2(fds[ERR], 2)
        link = HostLink(fds[GUEST])
        given = fds[ERR + 1 + len(joins) :]
        if views is not None:
            given += _seen(views, [one["source"] for one in request["shown"]])
        _isolate(root, request, single, joins, given, keep=fds[GUEST])
        if app is None:
            _execute(request["program"], request["env"])
        from _replsvc_guest.adopt import adopt_environment
        from _replsvc_guest.warm import warm

        adopt_environment(request["env"])
        if request["unused"]:
            # It has the time: the memory that a first cell writes to is its own now.
            warm(app)
        app.plumb(link)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        if link is not None:
            link.refuse(error)
        os._exit(3)
    app.serve()
    os._exit(0)


def _execute(program: list[str], env: dict[str, str]) -> NoReturn:
    """Become another program. The link's end says that it runs. Raises `OSError`."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(program[0], program, env)  # noqa: S606 - no shell is meant


def _seen(views: tuple[int, int], sources: list[str]) -> list[int]:
    """Detached mounts of what lies at these paths of the machine."""
    if not sources:
        return []
    machine, own = views
    namespaces.setns(machine, namespaces.NEWNS)
    made = [mounts.tree(path, 0) for path in sources]
    namespaces.setns(own, namespaces.NEWNS)
    return made


def _isolate(
    root: Any,
    request: dict[str, Any],
    single: bool,
    joins: list[int],
    given: list[int],
    keep: int,
) -> None:
    user, work = request["user"], request["work"]
    if work is None and not request["unused"]:
        work, *given = given
    namespaces.enter_session_namespaces("session")
    session_root.build(
        root,
        session_root.SessionRoot(
            user=user,
            shared=request["shared"],
            work=work,
            run=request["run"],
            tmp_bytes=request["tmp_bytes"],
            shared_memory_bytes=request["shared_memory_bytes"],
            shown=[
                session_root.Shown(fd, one["target"], one["writable"])
                for fd, one in zip(given, request["shown"])
            ],
        ),
    )
    # Not before: whoever is the first to move for a while waits some 10 ms for the system.
    cgroups.join(joins)
    namespaces.enter_cgroup_namespace()
    os.setsid()
    os.chdir(session_root.WORK)
    rlimits.apply(rlimits.Limits(**request["rlimits"]))
    umask = belongings.UMASK if request["shared"] else 0o022
    credentials.drop(user, user, single=single, umask=umask)
    landlock.restrict(server_root.WRITABLE, server_root.READABLE)
    close_fds.close_fds((0, 1, 2, keep))
    seccomp.apply()
