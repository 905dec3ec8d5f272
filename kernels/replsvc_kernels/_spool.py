"""Pipes whose bytes survive their reader: out of the pipe, and not yet known to be kept.

A coordinator that is killed must not take along what it had read and not yet put on disk. So bytes
go by `splice` from the pipe into a file in memory, which a holder has too, and are read from there;
no instant exists at which they are in one process's memory alone. A byte's place in that file is
its place in the stream: whoever knows how far a log goes reads on from there. What is said to be
kept is punched out of the file, so it stays small.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from replsvc_kernels._pipes import READ_BYTES, Pair, Pipe, Pump
from replsvc_kernels.messages import StreamName

KEEP_SIZE, PUNCH_HOLE = 1, 2
# Memory is given back in pieces of this size, not for every line.
PIECE_BYTES = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Keeps(Protocol):
    """Where descriptors are put that are to outlive this process.

    `leaving` is set when we go and what is kept stays for another.
    """

    leaving: bool

    def put(self, name: str, fds: Iterable[int] = ()) -> None:
        """Keep copies of these by that name."""

    def drop(self, name: str) -> None:
        """Let go of this name and all below it."""


class SpooledPipe(Pipe):
    """See the module. `position` is how many of the stream's bytes `read` has given out."""

    __slots__ = ("kept", "position", "size", "spool")

    def __init__(self, fd: int, name: StreamName, pair: Pair, spool: int, position: int) -> None:
        super().__init__(fd, name, pair)
        self.spool = spool
        self.size = os.fstat(spool).st_size
        self.position = self.kept = min(position, self.size)

    def waiting(self) -> int:
        """See `Pipe.waiting`."""
        return super().waiting() + self.size - self.position

    def read(self, limit: int = READ_BYTES) -> bytes | None:
        """See `Pipe.read`."""
        if self.position == self.size:
            if self.fd < 0:
                return b""
            try:
                self.size += os.splice(
                    self.fd, self.spool, limit, offset_dst=self.size, flags=os.SPLICE_F_NONBLOCK
                )
            except BlockingIOError:
                return None
        data = os.pread(self.spool, min(limit, self.size - self.position), self.position)
        self.position += len(data)
        return data

    def keep(self, upto: int) -> None:
        """Everything before `upto` is kept elsewhere."""
        upto = min(upto, self.position)
        start, end = self.kept // PIECE_BYTES * PIECE_BYTES, upto // PIECE_BYTES * PIECE_BYTES
        self.kept = max(self.kept, upto)
        if end > start:
            # Memory not given back is no loss of anything else.
            _libc.fallocate(self.spool, KEEP_SIZE | PUNCH_HOLE, start, end - start)


class HeldPump(Pump):
    """A pump whose pipes are held elsewhere too, below `pairs/NAME/`, until they are let go."""

    def start_holding(self, keeps: Keeps, name: str) -> None:
        """Before the first pair is made."""
        self.keeps, self._name = keeps, name
        self._ended: set[str] = set()
        self._closed_pairs: dict[int, Pair] = {}

    def new_pair(self) -> tuple[Pair, tuple[int, int]]:
        """See `Pump.new_pair`; no byte can be written that is not held."""
        pair, ends = super().new_pair()
        self.keeps.put(self._at(pair), (*ends_of(pair, "fd"), *ends_of(pair, "spool")))
        return pair, ends

    def _at(self, pair: Pair) -> str:
        return f"pairs/{self._name}/{pair.number}"

    def make_pipe(self, fd: int, name: StreamName, pair: Pair) -> Pipe:
        """See `Pump.make_pipe`."""
        try:
            spool = os.memfd_create("spool", os.MFD_CLOEXEC)
        except OSError:
            os.close(fd)
            raise
        return SpooledPipe(fd, name, pair, spool, 0)

    def adopt(
        self, number: int, cell: str, fds: tuple[int, ...], upto: Mapping[StreamName, int]
    ) -> Pair:
        """A pair that was held, read on from where `upto` says; the pump owns the descriptors."""
        pair = Pair(number, cell=cell)
        names: tuple[StreamName, StreamName] = ("stdout", "stderr")
        pipes: list[Pipe] = []
        for name, fd, spool in zip(names, fds[:2], fds[2:4], strict=True):
            pipe = SpooledPipe(fd, name, pair, spool, upto.get(name, 0))
            self._by_fd[fd] = pipe
            pipes.append(pipe)
        pair.pipes = tuple(pipes)
        self._numbers = max(self._numbers, number + 1)
        return pair

    def discard(self, pair: Pair) -> None:
        """Nobody wants what may be written there."""
        self.close_pair(pair)
        self._forget(pair)

    def name_cell(self, pair: Pair) -> None:
        """Say which cell the pair is given to, before that cell can begin."""
        self.keeps.put(f"{self._at(pair)}/{pair.cell}")

    def let_go(self, has_more: Callable[[str], bool]) -> None:
        """Pairs at their end are not held any more, unless their cell `has_more` to be kept."""
        for pair in [one for one in self._closed_pairs.values() if not has_more(one.cell)]:
            self._forget(pair)

    def close_pipe(self, pipe: Pipe) -> None:
        """See `Pump.close_pipe`."""
        if pipe.fd >= 0:
            super().close_pipe(pipe)
            if not pipe.pair.pipes:  # the other could not be made
                os.close(getattr(pipe, "spool"))  # noqa: B009 - it is one of ours
            elif not pipe.pair.open:
                self._closed_pairs[pipe.pair.number] = pipe.pair

    def _forget(self, pair: Pair) -> None:
        del self._closed_pairs[pair.number]
        self.keeps.drop(self._at(pair))
        for spool in ends_of(pair, "spool"):
            os.close(spool)

    def close(self) -> None:
        """See `Pump.close`. What is held goes with the kernel's own name."""
        super().close()
        for pair in self._closed_pairs.values():
            for spool in ends_of(pair, "spool"):
                os.close(spool)
        self._closed_pairs.clear()


def ends_of(pair: Pair, which: str) -> tuple[int, ...]:
    """One descriptor of each pipe of a pair."""
    return tuple(getattr(pipe, which) for pipe in pair.pipes)
