"""A workspace with a size bound, as root: a file system of its own in an image, on a loop device.

Chosen over project quotas, which need a disk that was mounted for them and a kernel built with
them, and over tmpfs, whose pages count as the session's memory. The image has no name, the loop
device detaches itself and the mount is nowhere: when the last process of the session and the last
descriptor are gone, whoever was killed in between, the kernel takes all of it away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator

from . import _libc, mounts

_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_CLR_FD = 0x4C82, 0x4C0A, 0x4C01
_AUTOCLEAR, _DIRECT_IO = 4, 16
_BLOCK = 4096
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_CLOEXEC = 1
# Of what is written, a session's small files are most: one inode for each of these bytes.
_BYTES_PER_FILE = 16_384
SMALLEST = 1024 * 1024


class WorkspaceImages:
    """Makes workspaces whose images lie on the disk of `directory`, which keeps no trace of them.

    It remembers what an empty image of each size looks like. `make` and the last `os.close` wait
    for the kernel for some 10 and 30 ms, without using a processor: call them in threads.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._empty: dict[int, list[tuple[int, bytes]]] = {}

    def make(self, size_bytes: int, user: int, group: int) -> int:
        """An empty workspace of at most `size_bytes` that belongs to `user` and `group` (outside).

        Returns a descriptor of a detached mount: for `SessionRoot.work`, and for ourselves to open
        files beneath it (`dir_fd`). The host's disk is used as it fills. Raises `OSError`.
        """
        if size_bytes < SMALLEST:
            raise ValueError(f"a workspace has at least {SMALLEST} bytes, not {size_bytes}")
        if size_bytes not in self._empty:
            self._empty[size_bytes] = self._make_empty(size_bytes)
        with self._image(size_bytes) as image:
            for offset, content in self._empty[size_bytes]:
                os.pwrite(image, content, offset)
            with _loop_device(image) as path:
                mount = _mount(path)
        try:
            os.chown(f"/proc/self/fd/{mount}", user, group)
        except BaseException:
            os.close(mount)
            raise
        return mount

    @contextlib.contextmanager
    def _image(self, size: int) -> Iterator[int]:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            os.ftruncate(file.fileno(), size)
            yield file.fileno()

    def _make_empty(self, size: int) -> list[tuple[int, bytes]]:
        program = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "there is no program mkfs.ext4 (e2fsprogs)")
        with self._image(size) as image:
            # A journal would protect it from a crash of the machine, which no session survives.
            command = (
                program, "-q", "-F", "-b", str(_BLOCK), "-m", "0", "-i", str(_BYTES_PER_FILE),
                "-O", "^has_journal,^resize_inode,uninit_bg", "-E", "lazy_itable_init=1,nodiscard",
                f"/proc/self/fd/{image}",
            )  # fmt: skip
            done = subprocess.run(  # noqa: S603 - nothing of a tenant's is in it
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                pass_fds=[image],
            )  # fmt: skip
            if done.returncode:
                raise OSError(errno.EIO, f"mkfs.ext4: {done.stderr.decode(errors='replace')}")
            with _loop_device(image) as path, mounts.closing(_mount(path)) as mount:
                os.rmdir("lost+found", dir_fd=mount)
                os.chmod(f"/proc/self/fd/{mount}", 0o700)
            return list(_written(image))


def again(mount: int) -> int:
    """Another detached mount of the workspace that `mount` is a descriptor of.

    A mount can be attached once, and is gone with the namespace that it was attached in; as long
    as one mount is left, so is what was written. Raises `OSError`.
    """
    device = os.fstat(mount).st_dev
    name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
    return _mount(f"/dev/{name}")


def _written(image: int) -> Iterator[tuple[int, bytes]]:
    end = os.fstat(image).st_size
    place = 0
    while place < end:
        try:
            start = os.lseek(image, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        place = os.lseek(image, start, os.SEEK_HOLE)
        content = os.pread(image, place - start, start)
        if content.strip(b"\0"):
            yield start, content


@contextlib.contextmanager
def _loop_device(image: int) -> Iterator[str]:
    """The path of a loop device that shows `image` until nobody has it open any more."""
    device, path = _attached(image)
    try:
        yield path
    finally:
        os.close(device)


def _attached(image: int) -> tuple[int, str]:
    info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR | _DIRECT_IO,
                       b"replsvc workspace", b"", b"", 0, 0)  # fmt: skip
    request = struct.pack("=II", image, _BLOCK) + info + bytes(64)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    with mounts.closing(control):
        while True:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            path = f"/dev/loop{number}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, request)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # somebody else was faster: take the next one
                    raise OSError(error.errno, f"{path}: {error.strerror}") from None
            else:
                return device, path


def _mount(device: str) -> int:
    context = _libc.syscall("fsopen", b"ext4", _CLOEXEC)
    with mounts.closing(context):
        _configure(context, _SET_STRING, b"source", os.fsencode(device))
        # What is deleted is given back to the host's disk.
        for flag in (b"noinit_itable", b"discard"):
            _configure(context, _SET_FLAG, flag, None)
        _configure(context, _CREATE, None, None)
        return _libc.syscall("fsmount", context, _CLOEXEC, mounts.SAFE)


def _configure(context: int, command: int, key: bytes | None, value: bytes | None) -> None:
    _libc.syscall("fsconfig", context, command, key, value, 0)
