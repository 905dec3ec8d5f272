"""What a process under the filter tries; run by inside.py, with only the standard library."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
from pathlib import Path
from typing import Any

from replsvc_kernels.sandbox import _bpf, _libc, seccomp
from replsvc_kernels.sandbox import _seccomp_policy as policy
from replsvc_kernels.sandbox._syscalls import ARCHITECTURE, TABLES

# Arguments that no call does anything with, even for root, should the filter let it through.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "mount": (None, None, None, 0, None),
    "umount2": (None, -1),
    "pivot_root": (None, None),
    "open_tree": (-1, None, -1),
    "move_mount": (-1, None, -1, None, -1),
    "fsopen": (None, -1),
    "fsconfig": (-1, 99, None, None, 0),
    "fsmount": (-1, -1, -1),
    "mount_setattr": (-1, None, -1, None, 0),
    "unshare": (0,),
    "setns": (-1, 0),
    "chroot": (None,),
    "ptrace": (99, 2**22 + 1, 0, 0),
    "process_vm_readv": (2**22 + 1, None, 0, None, 0, 0),
    "process_vm_writev": (2**22 + 1, None, 0, None, 0, 0),
    "pidfd_getfd": (-1, -1, 0),
    "kcmp": (2**22 + 1, 2**22 + 1, 0, 0, 0),
    "bpf": (-1, None, 0),
    "perf_event_open": (None, 0, 0, -1, 0),
    "keyctl": (-1, 0, 0, 0, 0),
    "add_key": (None, None, None, 0, 0),
    "request_key": (None, None, None, 0),
    "io_uring_setup": (0, None),
    "io_uring_enter": (-1, 0, 0, 0, None, 0),
    "userfaultfd": (-1,),
    "seccomp": (-1, 0, None),
    "open_by_handle_at": (-1, None, 0),
    "name_to_handle_at": (-1, None, None, None, 0),
    "fanotify_init": (-1, 0),
    "init_module": (None, 0, None),
    "swapoff": (None,),
    "reboot": (0, 0, 0, 0),
    "syslog": (-1, None, 0),
    "clock_settime": (-1, None),
    "sethostname": (None, -1),
    "io_setup": (0, None),
    "mbind": (1, 0, 0, None, 0, 0),
    "memfd_secret": (-1,),
    "remap_file_pages": (1, 0, 0, 0, 0),
    "clone3": (None, 0),
    "statmount": (None, None, 0, -1),
    "personality": (8,),
}


def outcome(name: str, *arguments: Any) -> str:
    """The name of the errno, or "done"."""
    try:
        _libc.syscall(name, *arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "done"


def harmless_calls(filtered: bool) -> dict[str, str]:
    if filtered:
        seccomp.apply()
    return {name: outcome(name, *arguments) for name, arguments in HARMLESS.items()}


def state_after_apply() -> dict[str, str]:
    seccomp.apply()
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def sockets(filtered: bool) -> dict[str, str]:
    if filtered:
        seccomp.apply()
    tried = {
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
        "unix seqpacket": (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0),
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, 0),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP),
        "udp": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP),
        "route": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
        "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0),
        "uevent": (socket.AF_NETLINK, socket.SOCK_RAW, 15),
        "alg": (38, socket.SOCK_SEQPACKET, 0),
        "vsock": (40, socket.SOCK_STREAM, 0),
    }
    return {name: outcome("socket", *arguments) for name, arguments in tried.items()}


def typing_into_a_terminal(filtered: bool) -> str:
    """TIOCSTI on a terminal of our own, where root may use it."""
    if filtered:
        seccomp.apply()
    _leader, follower = os.openpty()
    try:
        fcntl.ioctl(follower, 0x5412, b"x")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def core_limit() -> list[Any]:
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    seccomp.apply()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # says "done": whoever wants none has none
    found: list[Any] = [resource.getrlimit(resource.RLIMIT_CORE)]
    try:
        resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))
    except OSError as error:
        found.append(errno.errorcode[error.errno or 0])
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return [*found, resource.getrlimit(resource.RLIMIT_NOFILE)]


def machine_code(filtered: bool, code: str) -> int:
    """Run a function of machine code (hex); what it returned."""
    if filtered:
        seccomp.apply()
    area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(bytes.fromhex(code))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def unknown_numbers() -> list[str]:
    seccomp.apply()
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for number in (400, 600, 10_000, 0x40000000 | 39, -1):
        assert libc.syscall(ctypes.c_long(number), 0, 0, 0) == -1
        found.append(errno.errorcode[ctypes.get_errno()])
    return found


def second_filter() -> str:
    """A filter of one's own, as through prctl."""
    seccomp.apply()
    return outcome("prctl", 22, 2, 0)


def a_days_work() -> list[Any]:
    """What Python and its libraries do all day, after the filter."""
    import asyncio
    import multiprocessing
    import sqlite3
    import subprocess
    import tempfile
    import threading

    seccomp.apply()
    found: list[Any] = []
    thread = threading.Thread(target=found.append, args=("thread",))
    thread.start()
    thread.join()
    found.append(subprocess.run(["/bin/echo", "process"], capture_output=True, text=True).stdout)
    found.append(subprocess.run("echo shell | cat", shell=True, capture_output=True).returncode)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found += pool.map(abs, [-1])

    async def talk() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            line = await reader.read()
            writer.close()
            return line

    found.append(asyncio.run(talk()).decode())
    with tempfile.TemporaryDirectory() as directory, sqlite3.connect(f"{directory}/db") as database:
        found.append(database.execute("pragma journal_mode=wal").fetchone()[0])
    database.close()
    if (pid := os.fork()) == 0:
        signal.raise_signal(signal.SIGTERM)
    found.append(os.waitpid(pid, 0)[1])
    return found


def a_thread_that_was_there_before() -> str:
    """It must be held too: its unshare is refused."""
    import threading

    go = threading.Event()
    found: list[str] = []

    def body() -> None:
        go.wait()
        found.append(outcome("unshare", 0))

    thread = threading.Thread(target=body)
    thread.start()
    seccomp.apply()
    go.set()
    thread.join()
    return found[0]


def without(*names: str, answer: int = errno.ENOSYS) -> None:
    """Hold this process to a filter under which the kernel has no calls `names`."""
    numbers = {TABLES[ARCHITECTURE][name] for name in names}
    decisions = [_bpf.error(answer) if one in numbers else _bpf.ALLOW for one in range(512)]
    seccomp.apply(_bpf.program(policy.AUDIT_ARCH[ARCHITECTURE], decisions, _bpf.ALLOW))


def no_filters_in_this_kernel() -> str:
    without("seccomp")
    try:
        seccomp.apply()
    except OSError as error:
        return str(error)
    return "applied"
