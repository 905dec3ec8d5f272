"""The fork server's process: prepares once, forks often, reports how each kernel ended.

Packets from the host: the configuration first, then `{"fork": ID}` with descriptors (see `child`),
and `{"interrupt": ID}` where a signal to a group can't be sent by descriptor. A kernel that was
forked with `"unused": true` has no workspace until `{"bind": ID, "work": NAME}`, or without a name
a mount's descriptor; `{"bound": ID}` says that it has, or with an `"error"` why not. Packets to the
host:
`{"ready": ...}` once, with the pidfds of the keeper and of the server;
`{"forked": ID, "pid": N}` with the pidfds of the kernel and of its init;
`{"exited": ID, "code": N | "signal": N}` and `{"swept": ID}`, when nothing of it is left.

A keeper is pid 1 of the server's pid namespace and does nothing else: when the server dies, its
kernels live on as the keeper's children; when the host goes away, the keeper ends, and with it the
system ends every process of every session.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import sys
import traceback
from contextlib import nullcontext
from typing import Any

from _replsvc_guest.versions import WANTED, Untested
from _replsvc_sandbox import (
    environment,
    init,
    landlock,
    namespaces,
    readable,
    seccomp,
    server_root,
    session_root,
)

from . import child
from .control import Control, close_all

KEEPER = 1  # its pid in the server's pid namespace
# Their text says it all.
_SPEAKING = (environment.EnvironmentRefused, readable.Unreadable, Untested)


def main(fd: int) -> int:
    """See `__main__`."""
    control = Control(fd)
    heard = control.hear()
    if heard is None:
        return 0
    config, descriptors = heard
    if config.get("apart") and os.fork():
        # It outlives who started it, and then is not its child: somebody else waits for it.
        return 0
    try:
        server = _Server(control, config, descriptors)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        known = {name: getattr(error, name, None) for name in ("untested", "remedy")}
        control.say({"ready": False, "error": _one_line(error), **known})
        return 3
    return server.serve()


def _staging(own: str, needed: list[str]) -> str:
    """Where to build the root: a directory that any user can reach, and that nothing needed is in.

    The mount is seen in our own namespace only. `own` may lie where only the host's user can go.
    """
    for path in ("/mnt", "/media", "/srv"):
        if os.path.isdir(path) and not any(f"{one}/".startswith(f"{path}/") for one in needed):
            return path
    return own


def _heed_signals() -> None:
    """What whoever started the service ignores or blocks, kernels must not: only Python's own."""
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _one_line(error: BaseException) -> str:
    if type(error) is RuntimeError or isinstance(error, _SPEAKING):
        return str(error)[:2_000]
    text = "".join(traceback.format_exception_only(type(error), error))
    return " ".join(text.split())[:2_000]


class _Server:
    def __init__(self, control: Control, config: dict[str, Any], descriptors: list[int]) -> None:
        self._control = control
        self._kernels: dict[int, int] = {}
        self._inits: dict[int, int] = {}
        self._pids: dict[int, tuple[int, int]] = {}
        self._unused: set[int] = set()
        self._root: Any
        self._single = config.get("how") == namespaces.SINGLE
        self._enter(config, descriptors)
        # Set before libraries read them: a thread more, and no fork would be safe.
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        # As the only one they are whoever asked the environment already.
        user = namespaces.FIRST_SESSION_ID
        with nullcontext() if self._single else readable.checked(config["paths"], user):
            self._app = self._import(config.get("preload") or []) if config["guest"] else None
        seccomp.program()
        namespaces.assert_one_thread()
        _heed_signals()
        self._init = init.prepare()
        self._home = namespaces.open_own("pid")
        self._mounts = namespaces.open_own("mnt")
        self._wakeup, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()
        ready = {
            "landlock": landlock.supported(),
            "own_ids": not self._single,
            "binds": self._root.trees,
        }
        handles = [os.pidfd_open(one) for one in (KEEPER, os.getpid())]
        control.say({"ready": True, **ready}, handles)
        close_all(handles)

    def _enter(self, config: dict[str, Any], descriptors: list[int]) -> None:
        """User, mount and pid namespaces of the server, and its read-only root."""
        how = config["how"]
        namespaces.assert_one_thread()
        paths, sessions = config["paths"], config["sessions"]
        staging = _staging(config["staging"], [*paths, sessions])
        mounting = how == namespaces.ROOT and namespaces.may_mount()
        if how == namespaces.ROOT:
            maps = namespaces.maps_for_root(config["first_uid"], stays=not mounting)
        elif how == namespaces.SUBORDINATE:
            maps = namespaces.maps_from_subordinate_ids()
        else:
            maps = namespaces.maps_for_one_id()
        if mounting:
            namespaces.unshare(namespaces.NEWNS)
            self._root = server_root.build(staging, paths, sessions)
            namespaces.enter_user_namespace(maps)
        else:
            namespaces.enter_user_namespace(maps)
            namespaces.unshare(namespaces.NEWNS)
            self._root = server_root.build(staging, paths, sessions)
        namespaces.new_pid_namespace_for_children()
        keeper = os.fork()
        if keeper == 0:
            _keep(self._control, descriptors)
        server = os.fork()
        if server:
            # The process that the host started is left with nothing to do but to wait for both:
            # no other may have to, whatever is pid 1 on this machine.
            self._control.close()
            close_all(descriptors)
            for pid in (server, keeper):
                os.waitpid(pid, 0)
            os._exit(0)
        close_all(descriptors)
        machine = None if mounting else namespaces.open_own("mnt")
        namespaces.unshare(namespaces.NEWNS)
        server_root.enter(self._root)
        # Sessions' own mounts are made where the machine is seen, if not by the host itself.
        self._views = None if machine is None else (machine, namespaces.open_own("mnt"))

    def _import(self, preload: list[str]) -> Any:
        try:
            app = importlib.import_module("_replsvc_guest.app").build()
        except ImportError as error:
            raise RuntimeError(
                f"kernels need ipykernel, and it can't be imported ({error}). "
                f"Install it: {sys.executable} -m pip install '{WANTED}'"
            ) from error
        if preload:
            self._preload(preload)
        importlib.import_module("_replsvc_guest.warm").warm(app)
        return app

    def _preload(self, names: list[str]) -> None:
        """Import modules, some of which want a place to write; what they remember of it holds for
        sessions too, which have a `/tmp` of their own.
        """
        if not self._root.carried:  # else the environment itself lies there
            server_root.mount_temporary()
            os.environ.update(HOME="/tmp", TMPDIR="/tmp")  # noqa: S108 - its own
            os.environ.setdefault("MPLCONFIGDIR", "/tmp")  # noqa: S108
        for name in names:
            try:
                importlib.import_module(name)
            except Exception as error:
                raise RuntimeError(
                    f"preload: {name} can't be imported ({type(error).__name__}: {error}). "
                    f"Install it in the environment of {sys.executable}, or don't preload it"
                ) from error

    # Serving

    def serve(self) -> int:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                heard = self._control.hear()
                if heard is None:
                    self._end()
                    return 0
                packet, descriptors = heard
                if "fork" in packet:
                    self._fork(packet["fork"], descriptors, bool(packet.get("unused")))
                elif "bind" in packet:
                    self._bind(packet["bind"], packet.get("work"), descriptors)
                elif "interrupt" in packet:
                    self._interrupt(packet["interrupt"])

    def _fork(self, number: int, descriptors: list[int], unused: bool) -> None:
        init_pid = 0
        try:
            namespaces.new_pid_namespace_for_children()
            init_pid = init.spawn(self._init)
            pid = os.fork()
        except OSError as error:
            self._control.say({"refused": number, "error": _one_line(error)})
            close_all(descriptors)
            if init_pid:
                os.kill(init_pid, signal.SIGKILL)  # reaped like any other
            self._come_home()
            return
        if pid == 0:
            self._control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child.become_kernel(self._app, self._root, descriptors, self._single, self._views)
        self._come_home()
        close_all(descriptors)
        self._kernels[pid] = number
        self._inits[init_pid] = number
        self._pids[number] = (pid, init_pid)
        if unused:
            self._unused.add(number)
        handles = [os.pidfd_open(one) for one in (pid, init_pid)]
        self._control.say({"forked": number, "pid": pid}, handles)
        close_all(handles)

    def _bind(self, number: int, work: str | None, descriptors: list[int]) -> None:
        """Mount a workspace for a kernel. Once, and first: nothing of anybody's runs in there."""
        if number not in self._unused:
            self._control.say({"bound": number, "error": "it has ended, or is in use"})
            close_all(descriptors)
            return
        self._unused.discard(number)
        try:
            # Not reaped yet, so the pid is its own.
            handle = os.pidfd_open(self._pids[number][0])
            try:
                session_root.put_work(
                    self._root,
                    descriptors[0] if work is None else work,
                    lambda: namespaces.setns(handle, namespaces.NEWNS),
                )
            finally:
                os.close(handle)
                namespaces.setns(self._mounts, namespaces.NEWNS)
        except OSError as error:
            self._control.say({"bound": number, "error": _one_line(error)})
        else:
            self._control.say({"bound": number})
        finally:
            close_all(descriptors)

    def _come_home(self) -> None:
        namespaces.setns(self._home, namespaces.NEWPID)

    def _interrupt(self, number: int) -> None:
        pid, _ = self._pids.get(number, (0, 0))
        if pid in self._kernels:
            # Not reaped yet, so the pid and its group are its own.
            os.killpg(pid, signal.SIGINT)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (number := self._kernels.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                ended = {"code": code} if code >= 0 else {"signal": -code}
                self._control.say({"exited": number, **ended})
                _, init_pid = self._pids[number]
                if init_pid in self._inits:
                    os.kill(init_pid, signal.SIGKILL)
            elif (number := self._inits.pop(pid, None)) is not None:
                # An init is reaped when its namespace is empty.
                self._control.say({"swept": number})
            if number is not None and not self._alive(number):
                del self._pids[number]
                self._unused.discard(number)

    def _alive(self, number: int) -> bool:
        pid, init_pid = self._pids[number]
        return pid in self._kernels or init_pid in self._inits

    def _end(self) -> None:
        """The host is gone: end what is ours; the keeper's end takes the rest."""
        for pid in (*self._inits, *self._kernels):
            os.kill(pid, signal.SIGKILL)


def _keep(control: Control, descriptors: list[int]) -> None:
    """Pid 1 of the server's pid namespace: reap, and end when the host is gone.

    `descriptors[0]` is a pipe whose other end only the host has.
    """
    control.close()
    wakeup, wakeup_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(descriptors[0], 0)  # hang-ups are always reported
    poll.register(wakeup, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if descriptors[0] in ready:
            os._exit(0)
        os.read(wakeup, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue
