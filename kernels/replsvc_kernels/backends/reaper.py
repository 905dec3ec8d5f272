"""The process above each kernel: starts it, passes signals on, reports its end, sweeps its tree.

Run as a script (`PYTHON -I -S reaper.py CONTROL KEEP -- ARGV...`), standard library only, so that
it starts in about 10 ms and stays small. `CONTROL` is a SEQPACKET socket to the host; `KEEP` a
comma list of descriptors that the kernel inherits. Packets are JSON objects:

- host to reaper: `{"signal": N}` to the kernel's process group, `{"kill": true}` to end everything;
- reaper to host: `{"pid": N}` or `{"error": TEXT}` once, `{"delivered": bool}` for each signal,
  `{"exit": N}` or `{"exit_signal": N}` when the kernel ends, `{"swept": true}` when no process of
  the tree is left.

As a child subreaper it inherits every orphan of the tree, whatever setsid or double fork it did.
When the host goes away (EOF), the tree goes too. When the reaper itself is killed, the kernel gets
SIGKILL by its parent-death signal, and the host sweeps what is left by the marker in their
environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# What we ignore, or Python, or whoever started the service: the kernel must not inherit that.
DEFAULTS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
SWEEP_PAUSE_S = 0.02


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _start(argv: list[str], keep: list[int]) -> int:
    """Fork and exec the kernel in a session of its own; raises OSError when exec fails."""
    failed_r, failed_w = os.pipe2(os.O_CLOEXEC)
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != me:  # it died before it could be watched
                os._exit(127)
            for number in DEFAULTS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for fd in keep:
                os.set_inheritable(fd, True)
            os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - no shell is meant
        except Exception as error:  # noqa: BLE001 - whatever it is, only the parent can tell
            os.write(failed_w, str(error).encode())
        finally:
            os._exit(127)
    os.close(failed_w)
    with open(failed_r, "rb") as failed:  # noqa: PTH123 - a descriptor, not a path
        message = failed.read().decode(errors="replace")
    if message:
        os.waitpid(pid, 0)
        raise OSError(message)
    return pid


def children(pid: int) -> list[int]:
    """The children of `pid`, as procfs lists them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(root: int) -> list[tuple[int, int]]:
    """Every living descendant of `root` as `(pid, parent)`, parents first."""
    found: list[tuple[int, int]] = []
    todo = [root]
    while todo:
        parent = todo.pop()
        for pid in children(parent):
            found.append((pid, parent))
            todo.append(pid)
    return found


def _send(pid: int, parent: int, number: int) -> None:
    """Signal `pid` only if it is still the child of `parent`: pids are given out anew."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if pid in children(parent):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def sweep(wakeup: int) -> None:
    """End every descendant. Stopping first keeps a tree that forks from running ahead of us.

    `wakeup` becomes readable when a child has ended.
    """
    me = os.getpid()
    while True:
        stopped: set[int] = set()
        while fresh := [pair for pair in descendants(me) if pair[0] not in stopped]:
            for pid, parent in fresh:
                _send(pid, parent, signal.SIGSTOP)
                stopped.add(pid)
        for pid, parent in descendants(me):
            _send(pid, parent, signal.SIGKILL)
        # A listing may miss a process that was just born or orphaned: look again soon, whatever
        # ends.
        if select.select([wakeup], [], [], SWEEP_PAUSE_S)[0]:
            os.read(wakeup, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


class _Host:
    """The control socket; a host that went away is silence, not an error."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.set_inheritable(False)

    def say(self, **packet: object) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(packet).encode())

    def hear(self) -> dict[str, object] | None:
        try:
            data = self.socket.recv(4096)
        except OSError:
            return None
        return json.loads(data) if data else None


def _ended(status: int) -> dict[str, int]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit": code} if code >= 0 else {"exit_signal": -code}


def _serve(host: _Host, kernel: int, wakeup: int) -> bool:
    """Until the kernel has ended (True: reaped and reported), or the host says so, or is gone."""
    while True:
        ready, _, _ = select.select([host.socket.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == kernel:
                    host.say(**_ended(status))
                    return True
        if host.socket.fileno() in ready:
            packet = host.hear()
            if packet is None or "kill" in packet:
                return False
            if isinstance(number := packet.get("signal"), int):
                try:
                    # The kernel is not reaped yet, so its pid and group are its own.
                    os.killpg(kernel, number)
                    host.say(delivered=True)
                except OSError:
                    host.say(delivered=False)


def main(argv: list[str]) -> None:
    """See the module."""
    host = _Host(int(argv[1]))
    keep = [int(fd) for fd in argv[2].split(",") if fd]
    wakeup, wakeup_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        kernel = _start(argv[4:], keep)
    except OSError as error:
        host.say(error=str(error))
        return
    for fd in keep:
        os.close(fd)
    host.say(pid=kernel)
    if not _serve(host, kernel, wakeup):
        # Told to end it: it has not been reaped yet, so the pid is its own.
        os.kill(kernel, signal.SIGKILL)
        host.say(**_ended(os.waitpid(kernel, 0)[1]))
    sweep(wakeup)
    host.say(swept=True)


if __name__ == "__main__":
    main(sys.argv)
