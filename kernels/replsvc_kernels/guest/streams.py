"""Output for Jupyter's own clients, which hand over no pipes: `stream` messages, as they expect.

The cell gets pipes all the same, so that whatever its processes write is caught; the control thread
reads them to their ends, however late. Cells of our host never come here.
"""

from __future__ import annotations

import codecs
import functools
import os
import threading
from typing import Any, Callable

from .capture import Cell
from .link import Pair

READ_BYTES = 64 * 1024


class Streams:
    """Makes such cells. `say(name, parent, text)` publishes; `loop` is the control thread's."""

    def __init__(self, say: Callable[[str, Any, str], None], loop: Any) -> None:
        self._say, self._loop = say, loop
        self._pid = os.getpid()
        self._open: set[_Reader] = set()

    def cell(self, parent: dict[str, Any]) -> StreamedCell:
        """A cell for the request with the header `parent`."""
        ends = [os.pipe() for _ in range(2)]
        readers = [
            _Reader(read, functools.partial(self._say, name, parent))
            for name, (read, _) in zip(("stdout", "stderr"), ends)
        ]
        for reader in readers:
            self._open.add(reader)
            self._loop.call_soon_threadsafe(self._loop.add_reader, reader.fd, self._read, reader)
        return StreamedCell(
            Pair(0, ends[0][1], ends[1][1]), parent, lambda: self._all_said(readers)
        )

    def drop(self) -> None:
        """In a forked child: who reads is the parent."""
        for reader in self._open:
            os.close(reader.fd)
        self._open.clear()

    def _read(self, reader: _Reader) -> None:
        if reader in self._open and not reader.read():
            self._open.discard(reader)
            self._loop.remove_reader(reader.fd)
            os.close(reader.fd)

    def _all_said(self, readers: list[_Reader]) -> None:
        """Wait until what the pipes hold now is published."""
        if os.getpid() != self._pid:
            return
        said = threading.Event()

        def read() -> None:
            for reader in readers:
                self._read(reader)
            said.set()

        self._loop.call_soon_threadsafe(read)
        said.wait()


class StreamedCell(Cell):
    """A cell whose displays stand where they were made because the output before them is out."""

    __slots__ = ("_all_said",)

    def __init__(self, pair: Pair, parent: dict[str, Any], all_said: Callable[[], None]) -> None:
        super().__init__(pair, parent)
        self._all_said = all_said

    def mark(self, data: bytes) -> None:
        """No mark, its reader would show it: what was written is published."""
        del data
        self._all_said()

    def sync(self) -> None:
        """See `Cell.sync`."""
        self.flush()
        self._all_said()


class _Reader:
    """The read end of one pipe."""

    def __init__(self, fd: int, say: Callable[[str], None]) -> None:
        os.set_blocking(fd, False)
        self.fd, self._say = fd, say
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read(self) -> bool:
        """Publish what is there; False at the end."""
        while True:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                return True
            if text := self._decode(data, final=not data):
                self._say(text)
            if not data:
                return False
