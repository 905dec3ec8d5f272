"""A pid namespace with our init; run by inside.py, in a process that may make namespaces.

Whatever is signalled here was started here. Nothing is tried from inside before it is shown that
inside is a pid namespace of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replsvc_kernels.sandbox import init
from replsvc_kernels.sandbox._syscalls import ARCHITECTURE

NEWPID, NEWUSER = 0x20000000, 0x10000000
DEADLINE_S = 20.0


def until(condition: Any, what: str) -> None:
    """For what the kernel does by itself and tells nobody."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s in vain: {what}"
        os.sched_yield()


@contextmanager
def namespace(native: bool) -> Iterator[int]:
    """The pid of an init, in whose namespace our next children are born; ended at exit."""
    program = init.prepare() if native else None
    assert (program is not None) == native, f"nothing native for {ARCHITECTURE}"
    libc = ctypes.CDLL(None)
    assert libc.unshare(NEWPID) == 0 or libc.unshare(NEWUSER | NEWPID) == 0
    pid = init.spawn(program)
    try:
        until(lambda: comm(pid) == "replsvc-init", "its name")
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def prove_inside(outer: str) -> None:
    """Only a process that is not where the test runs may signal pid 1, or pids by number."""
    assert os.getpid() < 20, "not tried: this is not a small pid namespace"
    assert namespace_of(proc_self()) != outer, "not tried: the pid namespace is ours"


def proc_self() -> str:
    # /proc is the outer namespace's: getpid() means another process there.
    return str(Path("/proc/self").readlink())


def namespace_of(pid: str) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def state(native: bool) -> dict[str, Any]:
    with namespace(native) as pid:
        # Being named comes after it became undumpable, and the rest soon.
        until(lambda: int(status(pid)["SigIgn"], 16) & 1 << signal.SIGCHLD - 1, "SIGCHLD ignored")
        until(lambda: not list(Path(f"/proc/{pid}/fd").iterdir()), "descriptors closed")
        return {
            "pids": status(pid)["NSpid"].split()[1:],
            "session": os.getsid(pid) == pid,
            "threads": status(pid)["Threads"],
            "resident_kb": int(status(pid)["VmRSS"].split()[0]),
        }


def orphans(native: bool, count: int) -> dict[str, Any]:
    """Children whose parents end before them; the last of each pair is reaped by nobody of ours."""
    outer = namespace_of("self")
    with namespace(native) as pid:
        ready, go = os.pipe(), os.pipe()
        if (kernel := os.fork()) == 0:
            prove_inside(outer)
            assert os.getpid() == 2
            os.close(go[1])
            for _ in range(count):
                if (middle := os.fork()) == 0:
                    if os.fork() == 0:
                        os.setsid()
                        os.write(ready[1], b"x")
                        os.read(go[0], 1)
                        os._exit(3)
                    os._exit(0)
                os.waitpid(middle, 0)
            os.read(go[0], 1)
            os._exit(0)
        os.close(go[0])
        for _ in range(count):
            os.read(ready[0], 1)
        until(lambda: len(children(pid)) == count, "orphans given to init")
        adopted = children(pid)
        os.close(go[1])
        until(lambda: not children(pid), "orphans reaped")
        return {
            "adopted": len(adopted),
            "left": [one for one in adopted if Path(f"/proc/{one}").exists()],
            "kernel": os.waitpid(kernel, 0)[1],
            "init lives": Path(f"/proc/{pid}/stat").exists(),
        }


def attacks_from_inside(native: bool) -> dict[str, str]:
    """A session's process signals its init."""
    outer = namespace_of("self")
    told = os.pipe()
    with namespace(native) as pid:
        if (kernel := os.fork()) == 0:
            prove_inside(outer)
            for number in sorted(signal.valid_signals()):
                os.kill(1, number)
            os.write(told[1], b"done")
            os._exit(0)
        os.waitpid(kernel, 0)
        # Some of them may still be waking it up.
        until(lambda: status(pid)["State"][:1] in "STtZX", "its sleep, stop or end")
        return {"told": os.read(told[0], 10).decode(), "state": status(pid)["State"][:1]}


def its_end(native: bool) -> dict[str, Any]:
    """A process that ignores everything, and one that left every group, end with their init."""
    outer = namespace_of("self")
    ready = os.pipe()
    with namespace(native) as pid:
        if (kernel := os.fork()) == 0:
            prove_inside(outer)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                os.setsid()
            os.write(ready[1], b"x")
            while True:
                signal.pause()
        os.close(ready[1])
        seen = b""
        while len(seen) < 2:
            seen += os.read(ready[0], 2)
        os.kill(pid, signal.SIGKILL)
        # The write end closes when the last process that has it is gone.
        gone = bool(select.select([ready[0]], [], [], DEADLINE_S)[0]) and not os.read(ready[0], 1)
        # Its own end is not there before all of the namespace is reaped, which for the kernel is
        # our business, not its.
        early = os.waitpid(pid, os.WNOHANG)[0]
        ended = os.waitpid(kernel, 0)[1]
        try:
            os.fork()
        except OSError as error:
            new = errno.errorcode[error.errno or 0]
        else:
            os._exit(1)
        return {"gone": gone, "early": early, "ended": ended, "a new process": new}


def undumpable(native: bool) -> list[int]:
    """The owners of its entries in /proc, while it runs as somebody else than root."""
    program = init.prepare() if native else None
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
    pid = init.spawn(program)
    try:
        until(lambda: comm(pid) == "replsvc-init", "its name")
        return [Path(f"/proc/{one}/status").stat().st_uid for one in ("self", pid)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def outlives_its_parent(native: bool) -> bool:
    """A server may end, by its thread or altogether, and its sessions go on."""
    told = os.pipe()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: so that we get its init
    if (server := os.fork()) == 0:
        program = init.prepare() if native else None
        pid = init.spawn(program)
        until(lambda: comm(pid) == "replsvc-init", "its name")
        os.write(told[1], str(pid).encode())
        os._exit(0)
    os.waitpid(server, 0)
    pid = int(os.read(told[0], 20))
    until(lambda: status(pid)["State"][:1] == "S", "its sleep")
    lives = int(status(pid)["PPid"]) == os.getpid()
    os.kill(pid, signal.SIGKILL)
    return lives and os.waitpid(pid, 0)[1] == signal.SIGKILL
