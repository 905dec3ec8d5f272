"""What a session tries against the size of its workspace; run by inside.py as root."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from sessions import FIRST, attempted, directory, inside_a_session

from replsvc_kernels.sandbox import namespaces
from replsvc_kernels.sandbox.workspace_image import WorkspaceImages

MB = 1 << 20
SIZE = 16 * MB
OWNER = FIRST + 1


def ours(disk: Path) -> list[str]:
    """The loop devices that show an image of this directory's."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if f"{disk}/" in text:
            found.append(text)
    return found


def attacks() -> Any:
    """Fill, be sparse, make too many files; the host and a neighbour have what they had."""

    def attempt() -> dict[str, Any]:
        def fill() -> None:
            with_file = os.open("full", os.O_WRONLY | os.O_CREAT)
            try:
                while True:
                    os.write(with_file, bytes(65_536))
            finally:
                os.close(with_file)

        def many() -> None:
            for number in range(100_000):
                os.close(os.open(f"many-{number}", os.O_CREAT))

        found: dict[str, Any] = {"owner": os.stat(".").st_uid == os.getuid()}
        found["empty"] = os.listdir(".")
        found["fill"] = attempted(fill)
        found["bytes"] = os.stat("full").st_size
        os.unlink("full")
        file = os.open("sparse", os.O_WRONLY | os.O_CREAT)
        found["a terabyte"] = attempted(lambda: os.posix_fallocate(file, 0, 1 << 40))
        found["files"] = attempted(many)
        found["again"] = attempted(lambda: Path("/session/work/sparse").write_bytes(bytes(MB)))
        return found

    with directory() as disk:
        images = WorkspaceImages(str(disk))
        mine, theirs = (images.make(SIZE, OWNER, OWNER) for _ in range(2))
        room = os.statvfs(f"/proc/self/fd/{theirs}").f_bavail
        found, _ = inside_a_session(namespaces.ROOT, attempt, prepare=lambda _: {"work": mine})
        result = {
            **found,
            "seen outside": sorted(os.listdir(f"/proc/self/fd/{mine}"))[:1],
            "neighbour has room": os.statvfs(f"/proc/self/fd/{theirs}").f_bavail == room,
            "names on the disk": os.listdir(disk),
            "devices": len(ours(disk)),
        }
        os.close(mine)
        os.close(theirs)
        return {**result, "devices afterwards": len(ours(disk))}


def owner_killed() -> Any:
    """Whoever made a workspace is killed: device, mount and image are gone with it."""
    with directory() as disk:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            WorkspaceImages(str(disk)).make(SIZE, OWNER, OWNER)
            os.write(writing, b"!")
            signal.pause()
        os.read(reading, 1)
        before = len(ours(disk))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return [before, len(ours(disk)), os.listdir(disk)]


def without_the_program() -> list[str]:
    with directory() as disk:
        os.environ["PATH"] = ""
        import shutil

        which = shutil.which
        shutil.which = lambda name, path: which(name, path=str(disk))
        images = WorkspaceImages(str(disk))
        return [attempted(lambda: images.make(SIZE, 1, 1)), *os.listdir(disk)]
