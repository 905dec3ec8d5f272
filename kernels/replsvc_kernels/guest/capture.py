"""Output: each cell's two pipes, and the `sys.stdout` and `sys.stderr` that find the right one.

A `Cell` is reachable through a context variable, so tasks keep it by themselves and threads are
given it (`forks`). While a cell is in front, its pipes are also descriptors 1 and 2, for everything
that knows no Python. A cell's own descriptors close when the last context that can reach it dies.
"""

from __future__ import annotations

import codecs
import io
import itertools
import os
import select
import sys
from contextvars import ContextVar
from threading import RLock, get_ident, main_thread
from typing import Any, Callable

from .link import Pair

ERRORS = "replsvc_escape"
FIRST_FD = 10
MAIN = main_thread().ident


def _escape(error: UnicodeError) -> tuple[bytes, int]:
    """Encode lone surrogates: those that stand for bytes as the bytes, others as `\\uXXXX`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    code = ord(error.object[error.start])
    if 0xDC80 <= code <= 0xDCFF:
        return bytes([code - 0xDC00]), error.start + 1
    return b"\\u%04x" % code, error.start + 1


codecs.register_error(ERRORS, _escape)


class _Pipe(io.RawIOBase):
    """The write end of a pipe: blocks until all is written, and never buffers.

    `fd` is 1 or 2 while the cell is in front, so that a user's own `dup2` over them takes effect on
    what Python prints too. Only the main thread, which also changes cells, goes that way: another
    could be about to write to 1 just when that becomes the next cell's.
    """

    def __init__(self, fd: int) -> None:
        import fcntl

        # out of the way of programs that expect low numbers to be free
        try:
            self.own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD)
        except OSError:
            self.own = fd  # the user's code has opened all that it may
        else:
            os.close(fd)
        self.fd = self.own

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.fd if get_ident() == MAIN else self.own

    def write(self, data: Any) -> int:
        return self._write(self.fd if get_ident() == MAIN else self.own, data)

    def mark(self, data: bytes) -> None:
        """Write what is for the host alone: to the pipe, wherever the user sends descriptor 1."""
        try:
            self._write(self.own, data)
        except OSError:
            return

    @staticmethod
    def _write(fd: int, data: Any) -> int:
        size = len(data)
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            sent = 0
        if sent == size:
            return size
        rest = memoryview(data)[sent:]
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                # some child made the pipe non-blocking for everyone who shares it
                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll()
        return size

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        except KeyboardInterrupt:
            # it runs as a finalizer, which would swallow the user's interrupt
            _Stream.capture.swallowed()
        finally:
            os.close(self.own)


class Cell:
    """Where one cell's output goes. `parent` is the header of the request that started it."""

    __slots__ = ("__weakref__", "_pipes", "err", "last", "number", "out", "parent")

    def __init__(self, pair: Pair, parent: dict[str, Any]) -> None:
        self.number, self.parent = pair.number, parent
        self._pipes = (_Pipe(pair.out), _Pipe(pair.err))
        self.out: Any
        self.err: Any
        self.out, self.err = (
            io.TextIOWrapper(
                pipe,  # type: ignore[type-var] # it has all that is asked of a buffer
                encoding="utf-8",
                errors=ERRORS,
                newline="\n",
                line_buffering=True,
            )
            for pipe in self._pipes
        )
        self.last: Any = None

    def turn(self, stream: Any) -> None:
        """Python turns from one stream to the other: what the other one holds comes first.

        Two pipes have no common order, so a mark in both says where the turn was.
        """
        before, self.last = self.last, stream
        self.flush()
        if before is not None and before is not stream:
            _Stream.capture.turned(self)

    def mark(self, data: bytes) -> None:
        """Write a mark into both pipes."""
        for pipe in self._pipes:
            pipe.mark(data)

    def flush(self) -> None:
        """Write what the two text layers hold; that a reader went away is no error here."""
        for text in (self.out, self.err):
            try:
                text.flush()
            except (OSError, ValueError):
                continue

    def sync(self) -> None:
        """What is published after this comes after what the cell has written: marks see to that."""

    def raw(self, number: int) -> _Pipe:
        """The pipe that stands for descriptor `number`."""
        return self._pipes[number - 1]

    def place(self, in_front: bool) -> None:
        """Put this cell's pipes on descriptors 1 and 2, or make it write to its own again."""
        for number, pipe in enumerate(self._pipes, 1):
            if in_front:
                os.dup2(pipe.own, number)
            pipe.fd = number if in_front else pipe.own


class Capture:
    """The one in front, the one for what no cell prints, and the numbers of display messages."""

    swallowed: Callable[[], Any] = bool
    """Called when a finalizer of ours was struck by an interrupt that was not meant for it."""

    def __init__(self, orphan: Pair, nonce: str) -> None:
        self.orphan = self.front = Cell(orphan, {})
        self._nonce = nonce.encode()
        self._marks = itertools.count(1)
        self._marked = RLock()
        self._marking = True
        self._stdio = _CStdio()
        for text in (sys.stdout, sys.stderr):
            if text is not None:
                text.flush()
        self.orphan.place(in_front=True)
        current.set(self.orphan)
        _Stream.capture = self
        # libraries that go to the original streams on purpose must not wait in its buffer
        sys.stdout = sys.__stdout__ = _Stdout()  # type: ignore[assignment,misc]
        sys.stderr = sys.__stderr__ = _Stderr()  # type: ignore[assignment,misc]

    def cell(self) -> Cell:
        """The cell of this context; a thread that C made has none and gets the one in front."""
        return current.get(self.front)

    def begin(self, cell: Cell) -> None:
        """Bring `cell` to the front and make it this context's."""
        self._swap(cell)
        current.set(cell)

    def end(self) -> None:
        """Write everything that is held back, then put the orphan's pipes in front again."""
        self._stdio.flush()
        ended = self.front
        self._swap(self.orphan)
        ended.sync()
        current.set(self.orphan)

    def flush(self) -> None:
        """Write what Python holds back for this context's cell and for the one in front."""
        self.cell().flush()
        self.front.flush()

    def mark(self) -> int:
        """Write the next mark into both pipes, and return its number."""
        cell = self.cell()
        cell.flush()
        # Threads that write theirs crosswise would leave the host without an order.
        with self._marked:
            number = next(self._marks)
            cell.mark(b"\x1b]9913;%s;%d\x07" % (self._nonce, number))
        return number

    def turned(self, cell: Cell) -> None:
        """Mark where Python turned from one of `cell`'s streams to the other."""
        if self._marking:
            cell.mark(b"\x1b]9913;%s;t%d\x07" % (self._nonce, next(self._marks)))

    def begun(self) -> None:
        """Write mark 0 into the stdout of the cell in front: its request has come."""
        self.front.raw(1).mark(b"\x1b]9913;%s;0\x07" % self._nonce)

    def forked(self) -> None:
        """In a child: its descriptors 1 and 2 are those of the cell that forked."""
        self._marking = False  # its numbers would be the parent's
        self._marked = RLock()  # a thread of the parent's may have had it
        cell = self.cell()
        if cell is not self.front:
            self._swap(cell)

    def _swap(self, cell: Cell) -> None:
        if self.front is not cell:
            self.front.flush()
            self.front.place(in_front=False)
        cell.place(in_front=True)
        self.front = cell


current: ContextVar[Cell] = ContextVar("replsvc_cell")


class _Stream(io.TextIOBase):
    """A text stream that stays the same object while the cells behind it change."""

    capture: Capture
    encoding = "utf-8"
    errors = "surrogateescape"
    newlines = None
    line_buffering = True
    write_through = False
    mode = "w"
    number = 0
    name = ""

    def __init__(self) -> None:
        self.buffer = _Binary(self)

    def cell(self) -> Cell:
        return current.get(_Stream.capture.front)

    def text(self) -> Any:
        raise NotImplementedError

    def flush(self) -> None:
        self.text().flush()

    def fileno(self) -> int:
        return self.cell().raw(self.number).fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def reconfigure(self, **_options: Any) -> None:
        """Accepted and ignored: the encoding is fixed, and lines are written as they end."""

    def close(self) -> None:
        """Only flushes: the next cell needs the stream."""
        self.flush()

    def __repr__(self) -> str:
        return f"<{type(self).__name__[1:]} name={self.name!r} mode='w' encoding='utf-8'>"


class _Stdout(_Stream):
    number = 1
    name = "<stdout>"

    def text(self) -> Any:
        return self.cell().out

    def write(self, text: str) -> int:
        try:
            cell = current.get()
        except LookupError:
            cell = self.capture.front
        if cell.last is not self:
            cell.turn(self)
        return cell.out.write(text)  # type: ignore[no-any-return]


class _Stderr(_Stream):
    number = 2
    name = "<stderr>"

    def text(self) -> Any:
        return self.cell().err

    def write(self, text: str) -> int:
        try:
            cell = current.get()
        except LookupError:
            cell = self.capture.front
        if cell.last is not self:
            cell.turn(self)
        return cell.err.write(text)  # type: ignore[no-any-return]


class _Binary(io.RawIOBase):
    """`sys.stdout.buffer`: bytes, after what the text layer holds."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.raw = self
        self.name = stream.name
        self.mode = "wb"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any) -> int:
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        cell = self._stream.cell()
        cell.turn(self._stream)
        return cell.raw(self._stream.number).write(memoryview(data).cast("B"))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.flush()


class _CStdio:
    """C's stdout: lines as they end, and the rest before a cell's pipes leave descriptor 1."""

    def __init__(self) -> None:
        try:
            import ctypes

            libc = ctypes.CDLL(None)
            file = ctypes.c_void_p.in_dll(libc, "stdout")
            libc.setvbuf(file, None, 1, 0)
        except (ImportError, OSError, ValueError, AttributeError):
            self.flush: Callable[[], Any] = lambda: None
            return
        fflush = libc.fflush
        fflush.argtypes = [ctypes.c_void_p]
        self.flush = lambda: fflush(file)
