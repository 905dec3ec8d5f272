"""What a session tries against its namespaces and mounts; run by inside.py."""

from __future__ import annotations

import multiprocessing.synchronize
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sessions import attempted, call, directory, inside_a_session

from replsvc_kernels.sandbox import _libc, mounts, namespaces

MS_REMOUNT_BIND = 0x20 | 0x1000
IPC_CREAT, IPC_RMID = 0o1000, 0
KEY = 0x7E57


def write(path: str) -> Callable[[], Any]:
    return lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT))


def read(path: str) -> Callable[[], Any]:
    return lambda: Path(path).read_bytes()


def connect(family: int, address: Any) -> Callable[[], Any]:
    def action() -> None:
        with socket.socket(family) as sock:
            sock.connect(address)

    return action


def listing(path: str) -> Callable[[], Any]:
    return lambda: os.listdir(path)


# Namespaces


def surroundings(how: str) -> Any:
    """What of the host can be found from inside, by means of each namespace."""
    host = os.getpid()
    tcp = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0replsvc-test-{host}")
    abstract.listen()
    segment = _libc.syscall("shmget", KEY + host, 4096, IPC_CREAT | 0o666)
    port = tcp.getsockname()[1]

    def attempt() -> dict[str, Any]:
        def datagram() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"x", ("192.0.2.1", 53))

        with socket.create_server(("127.0.0.1", 0)) as own:
            own_loopback = attempted(connect(socket.AF_INET, own.getsockname()))
        return {
            "pids": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
            "own pid": os.getpid(),
            "signal the host's": attempted(lambda: os.kill(host, 0)),
            "signal init": attempted(lambda: os.kill(1, 0)),
            "init's root": attempted(listing("/proc/1/root/")),
            "connect to the host": attempted(connect(socket.AF_INET, ("127.0.0.1", port))),
            "its abstract socket": attempted(connect(socket.AF_UNIX, f"\0replsvc-test-{host}")),
            "a datagram out": attempted(datagram),
            "own loopback": own_loopback,
            "interfaces": [name for _, name in socket.if_nameindex()],
            "its shared memory": call("shmget", KEY + host, 4096, 0),
            "name": socket.gethostname(),
            "rename": attempted(lambda: socket.sethostname("x")),
            "groups": {
                line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()
            }
            == {"/"},
            "unshare pids": attempted(lambda: namespaces.unshare(namespaces.NEWPID)),
            "setuid": attempted(lambda: os.setuid(0)),
            "map ids": attempted(lambda: Path("/proc/self/uid_map").write_text("0 0 1")),
        }

    try:
        before = socket.gethostname()
        found, _ = inside_a_session(how, attempt)
        assert socket.gethostname() == before
        return found
    finally:
        _libc.syscall("shmctl", segment, IPC_RMID, None)
        abstract.close()
        tcp.close()


def threads() -> str:
    import threading

    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        namespaces.unshare(namespaces.NEWUTS)
    except RuntimeError as error:
        return str(error)
    finally:
        done.set()
        thread.join()
    return "done"


def failing_maps() -> dict[str, Any]:
    """A helper that can't write leaves no process, and its reason is told."""
    maps = namespaces.IdMaps(
        namespaces.ROOT,
        (namespaces.IdRange(0, 5, 1), namespaces.IdRange(0, 6, 1)),
        (namespaces.IdRange(0, 5, 1),),
    )
    result: dict[str, Any] = {}
    result["said"] = attempted(lambda: namespaces.enter_user_namespace(maps))
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        result["children"] = 0
    result["descriptors"] = len(os.listdir("/proc/self/fd")) - 1
    return result


def descriptors_after_entering(how: str) -> list[int]:
    from sessions import become_user

    before = len(os.listdir("/proc/self/fd"))
    if how == namespaces.SINGLE:
        become_user()
        namespaces.enter_user_namespace(namespaces.maps_for_one_id())
    else:
        namespaces.enter_user_namespace(namespaces.maps_for_root(1_900_000_000))
    return [before, len(os.listdir("/proc/self/fd"))]


# Mounts


def what_is_mounted(how: str, trees: bool) -> Any:
    def attempt() -> dict[str, int]:
        # Its options where a path leads to now: some lines are of what is covered.
        return {
            one.target: os.statvfs(one.target).f_flag
            for one in mounts.table()
            if os.path.lexists(one.target)
        }

    return inside_a_session(how, attempt, trees=trees)[0]


def writing(how: str, trees: bool) -> Any:
    def attempt() -> dict[str, str]:
        root = os.open("/usr", os.O_PATH)
        return {
            "/x": attempted(write("/x")),
            "/usr/x": attempted(write("/usr/x")),
            "/etc/x": attempted(write("/etc/x")),
            "/etc/hosts": attempted(write("/etc/hosts")),
            "/dev/x": attempted(write("/dev/x")),
            "/session/x": attempted(write("/session/x")),
            "/session/etc/passwd": attempted(write("/session/etc/passwd")),
            "/proc/sys": attempted(write("/proc/sys/kernel/core_pattern")),
            "/proc/irq": attempted(write("/proc/irq/default_smp_affinity")),
            "oom score": attempted(write("/proc/self/oom_score_adj")),
            "remount": call("mount", b"none", b"/usr", None, MS_REMOUNT_BIND, None),
            "attributes": call("mount_setattr", root, b"", 0x1000, bytes(32), 32),
            "unmount": call("umount2", b"/session", 2),
            "mount": call("mount", b"tmpfs", b"/session/work", b"tmpfs", 0, None),
            "pivot": call("pivot_root", b"/session/work", b"/session/work"),
            "chroot": attempted(lambda: os.chroot("/session/work")),
            "mknod": attempted(lambda: os.mknod("null", 0o600 | 0o020000, os.makedev(1, 3))),
        }

    return inside_a_session(how, attempt, trees=trees)[0]


def reading(how: str, trees: bool) -> Any:
    def attempt() -> dict[str, Any]:
        return {
            "neighbour": attempted(read("/session/all/theirs/work/secret")),
            "sessions": attempted(listing("/session/all")),
            "upwards": sorted(os.listdir("/session/work/../..")),
            "shadow": attempted(read("/etc/shadow")),
            "home": attempted(listing("/home")),
            "sys": attempted(listing("/sys")),
            "var": sorted(os.listdir("/var")),
            "tmp": sorted(os.listdir("/tmp")) + sorted(os.listdir("/var/tmp")),
            "dev": sorted(os.listdir("/dev")),
            "devices": [
                attempted(read("/dev/null")),
                len(open("/dev/urandom", "rb").read(8)),
                attempted(write("/dev/full")),
            ],
            "masked": {
                name: attempted(lambda name=name: Path(f"/proc/{name}").read_bytes() and 1 / 0)
                for name in ("kcore", "keys", "kallsyms", "interrupts", "timer_list")
                if os.path.exists(f"/proc/{name}")
            },
            "cpuinfo": Path("/proc/cpuinfo").read_text() != "",
            "users": Path("/etc/passwd").read_text().count("session:x:1000:1000:"),
        }

    return inside_a_session(how, attempt, trees=trees)[0]


def own_places(how: str, trees: bool) -> Any:
    """The bounds of /tmp and /dev/shm, what may be run where, and terminals."""

    def fill(path: str, most: int) -> str:
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        with mounts.closing(file):
            return attempted(lambda: [os.write(file, bytes(65_536)) for _ in range(most // 65_536)])

    def count(path: str) -> str:
        return attempted(lambda: [os.close(os.open(f"{path}/{n}", os.O_CREAT)) for n in range(100)])

    def run(path: str) -> str:
        Path(path).write_text("#!/bin/sh\nexit 0\n")
        os.chmod(path, 0o755)
        return attempted(lambda: subprocess.run([path], check=True))

    def attempt() -> dict[str, Any]:
        found = {
            "run in work": run("/session/work/x"),
            "run in tmp": run("/tmp/x"),
            "run in shm": run("/dev/shm/x"),
            "run in run": run("/session/run/x"),
            "semaphore": attempted(multiprocessing.Semaphore),
            "tmp": fill("/tmp/full", 4 << 20),
            "shm": fill("/dev/shm/full", 4 << 20),
        }
        for path in ("/tmp/x", "/tmp/full", "/dev/shm/x", "/dev/shm/full"):
            os.unlink(path)
        found |= {"tmp files": count("/tmp"), "shm files": count("/dev/shm")}
        ends = os.openpty()
        found["terminal"] = os.ttyname(ends[1]).rpartition("/")[0]
        Path("/session/work/kept").write_text("kept")
        return found

    def prepare(_: Path) -> dict[str, Any]:
        return {"tmp_files": 50, "shared_memory_bytes": 1 << 20}

    def after(place: Path) -> list[Any]:
        status = (place / "all/mine/work/kept").stat()
        return [status.st_uid, (place / "all/mine/work/kept").read_text()]

    return inside_a_session(how, attempt, trees=trees, prepare=prepare, after=after)


def in_tmp(trees: bool, how: str) -> Any:
    """An environment that lies in /tmp, with a link on the way to it."""
    import shutil
    import tempfile

    place = tempfile.mkdtemp(prefix="replsvc-test-", dir="/tmp")
    os.chmod(place, 0o755)
    try:
        os.makedirs(f"{place}/real/bin")
        Path(f"{place}/real/bin/tool").write_text("a tool")
        os.chmod(f"{place}/real/bin/tool", 0o666)
        Path(f"{place}/other").write_text("not of the environment")
        os.symlink("real", f"{place}/link")

        def attempt() -> dict[str, Any]:
            return {
                "through the link": attempted(read(f"{place}/link/bin/tool")),
                "directly": Path(f"{place}/real/bin/tool").read_text(),
                "beside it": attempted(read(f"{place}/other")),
                "write": attempted(write(f"{place}/real/bin/tool")),
                "remove": attempted(lambda: os.rename(place, f"{place}-x")),
                "own file": attempted(lambda: Path("/tmp/x").write_text("x")),
            }

        environment = (f"{place}/link", f"{place}/real")
        return inside_a_session(how, attempt, trees=trees, environment=environment)[0]
    finally:
        shutil.rmtree(place)


def below_a_closed_directory(how: str) -> Any:
    """As root an environment below a 0700 directory can be used by all sessions."""
    with directory() as place:
        (place / "home/env").mkdir(parents=True)
        (place / "home/env/tool").write_text("a tool")
        (place / "home/secret").write_text("secret")
        (place / "home").chmod(0o700)
        home = str(place / "home")

        def attempt() -> list[str]:
            return [
                attempted(read(f"{home}/env/tool")),
                attempted(read(f"{home}/secret")),
                *os.listdir(home),
            ]

        return inside_a_session(how, attempt, environment=(f"{home}/env",))[0]


def shown(trees: bool, target: str) -> Any:
    """Two things of the host's below the workspace; one of them can be written."""
    from replsvc_kernels.sandbox.session_root import Shown

    with directory() as outside:
        for name in ("ro", "rw"):
            (outside / name).mkdir()
            (outside / name).chmod(0o777)
            (outside / name / "file").write_text("the host's")
        (outside / "one").write_text("a file of the host's")
        for file in (outside / "ro/file", outside / "one"):
            file.chmod(0o666)  # its mount alone is in the way

        def prepare(_: Path) -> dict[str, Any]:
            namespaces.unshare(namespaces.NEWNS)
            mounts.make_private()
            sources = [mounts.tree(str(outside / name), 0) for name in ("ro", "rw", "one")]
            return {
                "shown": [
                    Shown(sources[0], target, writable=False),
                    Shown(sources[1], "out", writable=True),
                    Shown(sources[2], "a/file.txt", writable=False),
                ]
            }

        def attempt() -> dict[str, Any]:
            return {
                "read": Path(target, "file").read_text(),
                "read the file": Path("a/file.txt").read_text(),
                "write": attempted(write(f"{target}/file")),
                "write the file": attempted(write("a/file.txt")),
                "write the other": attempted(write("out/new")),
                "parent is ours": os.stat("a").st_uid == os.getuid(),
            }

        found, _ = inside_a_session(namespaces.ROOT, attempt, prepare=prepare, trees=trees)
        return [found, sorted(os.listdir(outside / "rw"))]


def around_a_session(how: str) -> list[bool]:
    """Mounts and loop devices of the host before and after."""
    before = mounts.table()
    inside_a_session(how, lambda: None)
    return [before == mounts.table()]
