"""What a session's code tries; it lies in its workspace, and is imported by its cells.

Importing it proves first that this is a sandbox, and raises `NotTried` otherwise: nothing in here
may run outside of one. Only the standard library is used.
"""
# ruff: noqa: PTH108, PTH115, PTH116, PTH123, PTH208
# What is tried is the system calls.

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OUTSIDE = "OUTSIDE_PID_NAMESPACE"


class NotTried(BaseException):
    """This is no sandbox. Nobody's `except Exception` may go on from here."""


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def uid_outside() -> int:
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= os.getuid() < inside + count:
            return outside + os.getuid() - inside
    raise NotTried("not tried: our uid is not mapped")


def pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def prove() -> dict[str, Any]:
    """The facts that say that this is a sandbox, or `NotTried`."""
    ours = status()
    facts = {
        "pid namespace": os.readlink("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "uid outside": uid_outside(),
        "pids": len(pids()),
        **{name: ours[name] for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")},
    }
    proven = (
        facts["pid namespace"] != os.environ[OUTSIDE]
        and os.getpid() < 10_000
        and facts["uid outside"] != 0
        and facts["pids"] < 300
        and int(ours["NSpid"].split()[-1]) == os.getpid()
        and int(ours["CapEff"], 16) == int(ours["CapPrm"], 16) == 0
        and ours["NoNewPrivs"] == "1"
        and ours["Seccomp"] == "2"
    )
    if not proven:
        raise NotTried(f"not tried: this is no sandbox: {facts}")
    return facts


prove()


def outcome(action: Callable[[], Any]) -> str:
    """The name of the error that `action` meets, or "done"."""
    try:
        action()
    except OSError as error:
        number = error.errno or 0
        return errno.errorcode.get(number, type(error).__name__)
    return "done"


# Processes


def against_process(pid: int) -> dict[str, str]:
    """Everything that one process can do to another by its number."""
    libc = ctypes.CDLL(None, use_errno=True)

    def attach() -> None:
        if libc.ptrace(16, pid, 0, 0) == -1:
            raise OSError(ctypes.get_errno(), "")

    actions: dict[str, Callable[[], Any]] = {
        "signal": lambda: os.kill(pid, 0),
        "kill": lambda: os.kill(pid, signal.SIGKILL),
        "pidfd": lambda: os.close(os.pidfd_open(pid)),
        "ptrace": attach,
        "limits": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        "scheduler": lambda: os.sched_setaffinity(pid, {0}),
    }
    for name in ("environ", "mem", "maps", "cmdline", "status", "root", "fd", "cwd", "ns"):
        actions[name] = lambda name=name: os.stat(f"/proc/{pid}/{name}/")
    return {name: outcome(action) for name, action in actions.items()}


def all_environments() -> str:
    """What can be read of anybody's environment and command line, our own included."""
    found = [repr(os.environ)]
    for pid in (*pids(), "self", "thread-self"):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
    return "\n".join(found)


# Sockets


def connect(address: Any) -> str:
    """A stream to a path, an abstract name, or `[host, port]`."""
    unix = isinstance(address, str)
    if unix and address[:1] == "/" and (seen := outcome(lambda: os.stat(address))) != "done":
        return seen  # it may be too long to be connected to
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as sock:
        sock.settimeout(5)
        return outcome(lambda: sock.connect(address if unix else tuple(address)))


def listen(name: str) -> int:
    """Listeners that live as long as this kernel: abstract, in the workspace, on loopback."""
    for address in (f"\0{name}", name):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(address)
        sock.listen()
        KEPT.append(sock)
    tcp = socket.create_server(("127.0.0.1", 0))
    KEPT.append(tcp)
    return int(tcp.getsockname()[1])


KEPT: list[Any] = []


def network() -> dict[str, Any]:
    def resolve() -> None:
        try:
            socket.getaddrinfo("example.com", 443)
        except socket.gaierror as error:
            raise OSError(errno.ENOENT, "unknown") from error

    def datagram() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"?", ("192.0.2.1", 53))

    def made(*arguments: int) -> Callable[[], None]:
        return lambda: socket.socket(*arguments).close()

    return {
        "interfaces": [name for _, name in socket.if_nameindex()],
        "resolve": outcome(resolve),
        "tcp": connect(["192.0.2.1", 443]),
        "metadata": connect(["169.254.169.254", 80]),
        "udp": outcome(datagram),
        "raw": outcome(made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)),
        "packet": outcome(made(socket.AF_PACKET, socket.SOCK_RAW, 0)),
        "vsock": outcome(made(40, socket.SOCK_STREAM, 0)),
        "alg": outcome(made(38, socket.SOCK_SEQPACKET, 0)),
    }


# Files


def walk() -> Iterator[tuple[str, list[str]]]:
    """Every directory that can be seen, with its files; /proc speaks of processes, not files."""
    for place, directories, files in os.walk("/"):
        if place == "/":
            directories.remove("proc")
        if place == "/session":
            directories.remove("proc")
        yield place, files


def find(names: list[str]) -> list[str]:
    """Where files with these names can be seen."""
    return [f"{place}/{name}" for place, files in walk() for name in files if name in names]


def read(path: str) -> str:
    return outcome(lambda: Path(path).read_bytes())


def writable() -> list[str]:
    """Directories that something can be made in: each claim is tried."""
    found = []
    for place, _ in walk():
        if place.startswith("/session/work/"):
            continue  # it made them itself
        if os.access(place, os.W_OK):
            path = f"{place}/made"
            if outcome(lambda path=path: os.close(os.open(path, os.O_CREAT | os.O_EXCL))) == "done":
                os.unlink(path)
                found.append(place)
    return sorted(found)


def written(paths: list[str]) -> dict[str, str]:
    """What comes of opening files that exist, for writing."""
    return {path: outcome(lambda path=path: os.close(os.open(path, os.O_WRONLY))) for path in paths}


def leave_marks(name: str) -> None:
    """A file of this name wherever a session can make one."""
    for place in (".", "/tmp", "/dev/shm", "/session/run"):
        outcome(Path(place, name).touch)


def fill(directory: str) -> list[Any]:
    """How a file grows until it can't, and how much it took."""
    path, size = f"{directory}/filling", 0
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                size += file.write(bytes(1 << 20))
    except OSError as error:
        return [errno.errorcode[error.errno or 0], size]
    finally:
        os.unlink(path)


def make_files(directory: str) -> str:
    """How making empty files ends."""
    place = Path(directory, "many")
    place.mkdir()

    def make() -> None:
        for number in range(1_000_000):
            os.close(os.open(place / str(number), os.O_CREAT))

    try:
        return outcome(make)
    finally:
        subprocess.run(["rm", "-r", str(place)], check=True)


# System calls


def calls(numbers: dict[str, int]) -> dict[str, str]:
    """Each by its number, with arguments that do nothing even where the call is allowed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def made(number: int) -> Callable[[], None]:
        def make() -> None:
            if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) == -1:
                raise OSError(ctypes.get_errno(), "")

        return make

    return {name: outcome(made(number)) for name, number in numbers.items()}


def new_namespaces(clone: int) -> dict[str, str]:
    """Asked for in earnest, in children."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}
    found = {}
    for name, flag in flags.items():
        child = libc.syscall(
            ctypes.c_long(clone), ctypes.c_long(flag | signal.SIGCHLD), *[ctypes.c_long(0)] * 4
        )
        if child == 0:
            os._exit(0)
        found[name] = "done" if child > 0 else errno.errorcode[ctypes.get_errno()]
    return found


# Limits


def raised_limits() -> dict[str, str]:
    """What comes of raising each limit that is not infinite."""
    found = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_") and name != "RLIMIT_CORE":
            which = getattr(resource, name)
            _, hard = resource.getrlimit(which)
            if hard != resource.RLIM_INFINITY:
                try:
                    resource.setrlimit(which, (hard + 1, hard + 1))
                    found[name] = "done"
                except (ValueError, OSError):
                    found[name] = "refused"
    return found


def open_many() -> list[Any]:
    kept: list[int] = []
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return [errno.errorcode[error.errno or 0], max(kept) + 1]
    finally:
        for fd in kept:
            os.close(fd)


def start_threads(most: int) -> list[Any]:
    """How starting threads ends, and how many there were."""
    go_on, started = threading.Event(), []
    try:
        for _ in range(most):
            thread = threading.Thread(target=go_on.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        return [str(error), len(started)]
    finally:
        go_on.set()
        for thread in started:
            thread.join()
    return ["done", len(started)]


def crash() -> list[Any]:
    """A child that dumps core, and the files that were not there before."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # says "done" and changes nothing
    places = (".", "/tmp")
    before = {place: set(os.listdir(place)) for place in places}
    child = os.fork()
    if child == 0:
        os.abort()
    _, how = os.waitpid(child, 0)
    new = [name for place in places for name in set(os.listdir(place)) - before[place]]
    return [os.WTERMSIG(how), os.WCOREDUMP(how), new]


# What must be stopped from outside

DEAF = """
import os, signal
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
"""
BOMB = (
    DEAF
    + """
told = False
while True:
    try:
        os.fork()
    except OSError:
        if not told:
            told = True
            os.write(1, b"full\\n")
"""
)
LINGER = (
    DEAF
    + """
os.setsid()
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""
)


def fork_bomb() -> None:
    """Processes that fork without an end and heed nothing; returns when no more can be made."""
    prove()
    bomb = subprocess.Popen([sys.executable, "-c", BOMB], stdout=subprocess.PIPE)
    KEPT.append(bomb)
    assert bomb.stdout is not None
    bomb.stdout.readline()


def linger() -> int:
    """Start a process that has left every group and heeds nothing; its pid in here."""
    prove()
    before = set(pids())
    one = subprocess.Popen([sys.executable, "-c", LINGER], stdout=subprocess.PIPE)
    KEPT.append(one)
    assert one.stdout is not None
    left = int(one.stdout.readline())
    one.wait()
    while set(pids()) - before != {left}:
        os.sched_yield()  # those between have said nothing when they end
    return left


def secrets_in(text: str) -> list[str]:
    """What looks like a key."""
    return re.findall(r"[0-9a-f]{32,}", text)


def in_memory(halves: list[str]) -> int:
    """How often the two halves together are somewhere in our own memory; only here apart."""
    pattern = re.compile(
        re.escape(halves[0].encode()) + b"(?=" + re.escape(halves[1].encode()) + b")"
    )
    count = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(one, 16) for one in place.split("-"))
            if rights.startswith("rw"):
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    count += len(pattern.findall(memory.read(end - start)))
    return count
