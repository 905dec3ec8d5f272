"""Per-cell output pipes: made here, written by the kernel's process tree, read here.

For each cell the host makes two pipes and passes their write ends to the guest ahead of time, over
a SEQPACKET socket (SCM_RIGHTS). Descriptors are never accepted from a kernel. So nothing a cell
writes is lost, whoever was started by a cell writes to that cell's pipe however late, back-pressure
is the pipe, and the last bytes of a killed kernel are kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import trio

from replsvc_kernels.messages import StreamName

READ_BYTES = 256 * 1024
WIDE_PIPE_BYTES = 1024 * 1024
# A reader that is woken for every line of a chatty cell costs more than the line; this much delay
# lets bytes gather and is not seen by anyone.
GATHER_S = 0.001
# A slowed session may save up so much time of silence, and is read in no smaller parts.
BURST_S = 1.0
LEAST_READ_BYTES = 1024


class Pipe:
    """The read end of one stream of one cell. `sink` takes each chunk that the pump reads."""

    __slots__ = ("armed", "fd", "name", "pair", "registered", "wide")

    def __init__(self, fd: int, name: StreamName, pair: Pair) -> None:
        self.fd, self.name, self.pair = fd, name, pair
        self.registered = self.armed = self.wide = False

    @property
    def open(self) -> bool:
        """Whether any process may still write to it."""
        return self.fd >= 0

    def waiting(self) -> int:
        """Bytes that can be read now."""
        if self.fd < 0:
            return 0
        count: int = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        return count

    def read(self, limit: int = READ_BYTES) -> bytes | None:
        """Up to `limit` bytes, b"" at the end of the stream, None when nothing is there now."""
        try:
            return os.read(self.fd, limit)
        except BlockingIOError:
            return None

    def drain(self) -> Iterator[bytes]:
        """What can be read now and no more, however fast others write."""
        left = self.waiting()
        while left > 0 and (data := self.read(left)):
            left -= len(data)
            yield data


@dataclass(eq=False, slots=True)
class Pair:
    """The two pipes of one cell. `number` is how the guest knows which request they belong to."""

    number: int
    pipes: tuple[Pipe, ...] = ()
    sink: Callable[[Pipe, bytes], bool] | None = None
    """Takes a chunk; False asks the pump to stop reading until `Pump.resume`."""
    cell: str = field(default="")

    @property
    def open(self) -> bool:
        """Whether either stream may still get bytes."""
        return any(pipe.open for pipe in self.pipes)


class _Pace:
    """How long to wait after so many bytes: so many a second, `BURST_S` of them at once."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until = -math.inf

    @property
    def step(self) -> int:
        """Bytes to read at a time, so that what is slow comes evenly."""
        if self._bytes_per_s is None:
            return READ_BYTES
        return max(LEAST_READ_BYTES, min(READ_BYTES, int(self._bytes_per_s / 10)))

    def wait_s(self, read: int) -> float:
        if self._bytes_per_s is None:
            return GATHER_S
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now - BURST_S) + read / self._bytes_per_s
        return max(GATHER_S, self._paid_until - now)


class Pump:
    """All output pipes of one kernel: makes them, hands their write ends over, reads them.

    A pair is read by whoever runs its cell (`Pipe.read`) until it is registered here; then the pump
    reads it and gives each chunk to the pair's sink. A cell that ends within milliseconds never
    touches epoll.

    With `bytes_per_s` it reads no faster, and writers wait in their pipes. Who runs a cell reads
    what is left when that has ended, at once.
    """

    def __init__(
        self, guest: socket.socket, max_open: int, bytes_per_s: float | None = None
    ) -> None:
        self._pace = _Pace(bytes_per_s)
        self._may_widen = bytes_per_s is None
        self._guest = guest
        self._epoll = select.epoll()
        self._by_fd: dict[int, Pipe] = {}
        self._numbers = 0
        self._max_open = max_open
        self._late: list[Pair] = []
        self._retired: dict[int, Pair] = {}
        self._late_added = trio.Event()
        self._closed = False

    def new_pair(self) -> tuple[Pair, tuple[int, int]]:
        """Make a pair; returns it with the write ends, which the caller hands over and closes."""
        number = self._numbers
        self._numbers += 1
        pair = Pair(number)
        ends: list[int] = []
        pipes: list[Pipe] = []
        names: tuple[StreamName, StreamName] = ("stdout", "stderr")
        try:
            for name in names:
                read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
                ends.append(write_fd)
                # The kernel is another user, and may open /dev/stderr. It alone has a path to it.
                os.fchmod(write_fd, 0o622)
                os.set_blocking(read_fd, False)
                pipe = self.make_pipe(read_fd, name, pair)
                self._by_fd[read_fd] = pipe
                pipes.append(pipe)
        except OSError:
            for fd in ends:
                os.close(fd)
            for pipe in pipes:
                self.close_pipe(pipe)
            raise
        pair.pipes = tuple(pipes)
        return pair, (ends[0], ends[1])

    def make_pipe(self, fd: int, name: StreamName, pair: Pair) -> Pipe:
        """The reader of a new pipe. Raises `OSError`."""
        return Pipe(fd, name, pair)

    def hand_over(self, packet: dict[str, object] | None = None) -> Pair:
        """Make a pair and send its write ends to the guest, which reads them when it needs them."""
        pair, ends = self.new_pair()
        try:
            body = json.dumps({**(packet or {}), "pair": pair.number}).encode()
            # A guest that is gone is found out by its process's end, not here.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
                socket.send_fds(self._guest, [body], list(ends))
        finally:
            for fd in ends:
                os.close(fd)
        return pair

    def register(self, pair: Pair) -> None:
        """Let the pump read this pair from now on."""
        for pipe in pair.pipes:
            if pipe.open and not pipe.registered:
                self._widen(pipe)
                self._epoll.register(pipe.fd, select.EPOLLIN)
                pipe.registered = pipe.armed = True

    def resume(self, pair: Pair) -> None:
        """Read on, after the pair's sink had asked for a stop."""
        for pipe in pair.pipes:
            if pipe.open and pipe.registered and not pipe.armed:
                self._epoll.modify(pipe.fd, select.EPOLLIN)
                pipe.armed = True

    def retire(self, pair: Pair) -> None:
        """The pair's cell has ended: read it as background from soon on, close it at its end."""
        if not pair.open:
            return
        self._retired[pair.number] = pair
        self._late.append(pair)
        self._late_added.set()

    def _widen(self, pipe: Pipe) -> None:
        # Only for cells that last: the system bounds the pages that a user's pipes may hold.
        if not pipe.wide and self._may_widen:
            pipe.wide = True
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fd, fcntl.F_SETPIPE_SZ, WIDE_PIPE_BYTES)

    async def run(self) -> None:
        """Read registered pairs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_late)
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                read = 0
                for fd, _events in self._epoll.poll(0):
                    if (pipe := self._by_fd.get(fd)) is not None:
                        read += self._take(pipe)
                await trio.sleep(self._pace.wait_s(read))

    def _take(self, pipe: Pipe) -> int:
        data = pipe.read(self._pace.step)
        if data is None:
            return 0
        if not data:
            self.close_pipe(pipe)
        sink = pipe.pair.sink
        if sink is not None and not sink(pipe, data) and pipe.open:
            self._epoll.modify(pipe.fd, 0)
            pipe.armed = False
        return len(data)

    async def _watch_late(self) -> None:
        # Most pairs are at their end a moment after their cell: look once, later, at many together.
        while True:
            await self._late_added.wait()
            await trio.sleep(0.05)
            self._late_added = trio.Event()
            late, self._late = self._late, []
            for pair in late:
                self._look_once(pair)
                self.register(pair)
            self._close_surplus()

    def _look_once(self, pair: Pair) -> None:
        """Close what is at its end: then epoll, whose calls cost more than this, is not needed."""
        for pipe in pair.pipes:
            if pipe.open and not pipe.registered and (data := pipe.read()) is not None:
                if not data:
                    self.close_pipe(pipe)
                if pair.sink is not None:
                    # Whether there is room for more is asked with the next chunk.
                    pair.sink(pipe, data)

    def _close_surplus(self) -> None:
        """Keep at most `max_open` pairs of ended cells: whoever writes to an older gets EPIPE."""
        surplus = sorted(self._retired)[: max(0, len(self._retired) - self._max_open)]
        for number in surplus:
            pair = self._retired[number]
            sink = pair.sink
            if sink is not None:
                for pipe in pair.pipes:
                    for data in pipe.drain():
                        sink(pipe, data)
                sink(pair.pipes[0], b"")
            self.close_pair(pair)

    def close_pipe(self, pipe: Pipe) -> None:
        """Close one read end."""
        if pipe.fd < 0:
            return
        if pipe.registered:
            try:
                self._epoll.unregister(pipe.fd)
            except OSError as error:
                if error.errno not in (errno.EBADF, errno.ENOENT):
                    raise
        del self._by_fd[pipe.fd]
        os.close(pipe.fd)
        pipe.fd = -1
        if not pipe.pair.open:
            self._retired.pop(pipe.pair.number, None)

    def close_pair(self, pair: Pair) -> None:
        """Close both read ends."""
        for pipe in pair.pipes:
            self.close_pipe(pipe)

    def close(self) -> None:
        """Close everything; `run` must have ended."""
        if self._closed:
            return
        self._closed = True
        for pipe in list(self._by_fd.values()):
            self.close_pipe(pipe)
        self._epoll.close()
        self._guest.close()
