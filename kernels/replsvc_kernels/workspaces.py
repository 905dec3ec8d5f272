"""Where the files of sessions are: a directory each, or as root a file system of a bounded size.

A workspace outlives kernels: it is there before the first one of its session, and is removed after
the last one has ended.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from replsvc_kernels.background import background_nursery
from replsvc_kernels.disk_usage import disk_usage
from replsvc_kernels.sandbox import removal, workspace_image

# Empty ones of the usual size that wait for the next sessions.
STOCK = 2
# These say something of this moment; all others, that images can't be had on this machine.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EIO)


class Workspace:
    """The files of one session. Made by `Workspaces.take`; `close` removes them.

    `path` is how the host reaches them, and stays the same; `directory` is a place on the disk for
    what else a kernel needs. `hard` says whether the system refuses more than `size_bytes`.
    """

    def __init__(self, owner: Workspaces, name: str, size_bytes: int | None) -> None:
        self._owner = owner
        self.name, self.size_bytes = name, size_bytes
        self.directory = owner.sessions / name
        self._image: int | None = None

    @property
    def hard(self) -> bool:
        """See the class."""
        return self._image is not None

    @property
    def image(self) -> int | None:
        """A descriptor of its file system, if it has one of its own; it stays ours."""
        return self._image

    @property
    def path(self) -> Path:
        """See the class. What is beneath it is hostile once a kernel has run."""
        if self._image is None:
            return self.directory / "work"
        return Path(f"/proc/self/fd/{self._image}")

    def mount(self) -> int:
        """A descriptor of a mount of its own for a kernel; the caller closes it.

        Only where it is `hard`; other workspaces are reached by their names. Raises `OSError`.
        """
        assert self._image is not None
        return workspace_image.again(self._image)

    async def used(self) -> int:
        """Bytes on the disk of all that is in it, or somewhat more than `size_bytes`."""
        enough = self.size_bytes if self.size_bytes is not None else 2**63
        return await trio.to_thread.run_sync(disk_usage, str(self.path), enough)

    async def renew(self) -> None:
        """Make it empty again, while no kernel has it. Raises `OSError`."""
        if self._image is None:
            await trio.to_thread.run_sync(self._make_directory)
            return
        assert self.size_bytes is not None
        fresh = await self._owner.image(self.size_bytes)
        # At the same number, so that nobody has to be told of another path.
        await trio.to_thread.run_sync(_replace, fresh, self._image)

    async def close(self) -> None:
        """Remove it, with all that is in `directory`. No process may have it any more.

        Nobody can reach an image then; the system takes it apart in the background.
        """
        image, self._image = self._image, None
        if image is not None:
            self._owner.let_go(image)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(removal.discard, str(self.directory))

    async def leave(self) -> None:
        """Let go of it without removing it: another coordinator has it from now on."""
        image, self._image = self._image, None
        if image is not None:
            # The last to let go unmounts it, which takes a while.
            await trio.to_thread.run_sync(os.close, image)

    def adopt(self, image: int | None) -> None:
        """It is there already, as another coordinator left it; the descriptor is ours to close."""
        self._image = image

    async def open(self, *, image: bool) -> None:
        """Make it. Raises `OSError`, and then nothing of it is left."""
        try:
            if image and self.size_bytes is not None:
                self._image = await self._owner.image(self.size_bytes)
            await trio.to_thread.run_sync(self._make_directory)
        except BaseException:
            await self.close()
            raise

    def _make_directory(self) -> None:
        # The session's user passes through it; the workspace itself is for that user alone.
        self.directory.mkdir(mode=0o711, exist_ok=True)
        if self._image is None:
            removal.discard(str(self.directory / "work"))
            (self.directory / "work").mkdir(mode=0o700)


class Workspaces:
    """All workspaces of a coordinator. Use `running` around them."""

    def __init__(self, sessions: Path, usual_bytes: int | None = None) -> None:
        """`sessions` holds a directory a session; of `usual_bytes` some are made ahead."""
        self.sessions, self._usual_bytes = sessions, usual_bytes
        self._images = workspace_image.WorkspaceImages(str(sessions))
        self._stock: list[int] = []
        self._low = trio.Event()
        self.soft_because: str | None = None if os.geteuid() == 0 else "it takes root"
        """Why no workspace has a hard bound here, as far as that is known."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Workspaces]:
        """The stock lives as long as the body; workspaces that were taken are their takers'."""
        try:
            async with background_nursery() as self._nursery:
                self._nursery.start_soon(self._keep_stock)
                yield self
        finally:
            stock, self._stock = self._stock, []
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_close_all, stock)

    async def take(self, name: str, size_bytes: int | None, *, isolated: bool) -> Workspace:
        """An empty workspace called `name`, which must be a file's name that nobody else has.

        It has a hard bound where images can be had and the session is isolated: others can't be
        shown one. Raises `OSError`.
        """
        workspace = Workspace(self, name, size_bytes)
        if isolated and self.soft_because is None:
            try:
                await workspace.open(image=True)
            except OSError as error:
                if error.errno in _PASSING:
                    raise
                self.soft_because = str(error)
            else:
                return workspace
        await workspace.open(image=False)
        return workspace

    def adopt(self, name: str, size_bytes: int | None, image: int | None) -> Workspace:
        """The workspace called `name` that another coordinator left, with its `image` if any."""
        workspace = Workspace(self, name, size_bytes)
        workspace.adopt(image)
        return workspace

    async def image(self, size_bytes: int) -> int:
        """An empty image's mount, from the stock if there is one. Raises `OSError`."""
        if size_bytes != self._usual_bytes:
            return await self._make(size_bytes)
        found = self._stock.pop() if self._stock else await self._make(size_bytes)
        self._low.set()
        return found

    def let_go(self, image: int) -> None:
        """Close an image's mount in the background; `running` waits for the end of it."""
        self._nursery.start_soon(_close, image)

    async def _make(self, size_bytes: int) -> int:
        return await trio.to_thread.run_sync(self._images.make, size_bytes, 0, 0)

    async def _keep_stock(self) -> None:
        while True:
            await self._low.wait()
            self._low = trio.Event()
            try:
                while len(self._stock) < STOCK and self._usual_bytes is not None:
                    self._stock.append(await self._make(self._usual_bytes))
            except OSError:
                continue  # who takes the next one makes it, or hears why not


def _replace(fresh: int, old: int) -> None:
    os.dup2(fresh, old, inheritable=False)
    os.close(fresh)


async def _close(image: int) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(os.close, image)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
