"""The pump on real pipes, driven as a guest would."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from replsvc_kernels._pipes import READ_BYTES, WIDE_PIPE_BYTES, Pair, Pipe, Pump


class Guest:
    """A pump, the write ends of its pairs, and what its sinks were given."""

    def __init__(self, max_open: int = 64, bytes_per_s: float | None = None) -> None:
        self.link, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(30)
        self.pump = Pump(ours, max_open, bytes_per_s)
        self.ends: list[int] = []
        self.told: list[tuple[int, str, bytes]] = []
        self.more = trio.Event()
        self.greedy = True

    def sink(self, pipe: Pipe, data: bytes) -> bool:
        self.told.append((pipe.pair.number, pipe.name, data))
        self.more.set()
        return self.greedy

    def pair(self) -> tuple[Pair, int, int]:
        pair = self.pump.hand_over()
        pair.sink = self.sink
        _, ends, _, _ = socket.recv_fds(self.link, 4096, 2)
        self.ends += ends
        return pair, ends[0], ends[1]

    async def wait_told(self, count: int) -> None:
        while len(self.told) < count:
            self.more = trio.Event()
            await self.more.wait()

    def close(self) -> None:
        self.pump.close()
        self.link.close()
        for fd in self.ends:
            os.close(fd)


@contextmanager
def guest(max_open: int = 64, bytes_per_s: float | None = None) -> Iterator[Guest]:
    it = Guest(max_open, bytes_per_s)
    try:
        yield it
    finally:
        it.close()


async def reader_gone(fd: int) -> None:
    with select.epoll() as epoll:
        epoll.register(fd, 0)  # no event is asked for: only the error is left
        await trio.lowlevel.wait_readable(epoll.fileno())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_registered_pairs_are_read_with_their_names_and_to_their_ends(
    nursery: trio.Nursery,
) -> None:
    with guest() as it:
        pair, out, err = it.pair()
        it.pump.register(pair)
        nursery.start_soon(it.pump.run)
        os.write(out, b"a")
        await it.wait_told(1)
        os.write(err, b"b")
        await it.wait_told(2)
        for fd in it.ends:
            os.close(fd)
        it.ends = []
        await it.wait_told(4)
        assert it.told[:2] == [(0, "stdout", b"a"), (0, "stderr", b"b")]
        assert {chunk for *_, chunk in it.told[2:]} == {b""}
        assert not pair.open
        nursery.cancel_scope.cancel()


async def test_a_sink_that_says_stop_is_given_no_more_until_it_is_resumed(
    nursery: trio.Nursery,
) -> None:
    with guest() as it:
        it.greedy = False
        pair, out, _ = it.pair()
        it.pump.register(pair)
        nursery.start_soon(it.pump.run)
        os.set_blocking(out, False)
        os.write(out, b"x" * WIDE_PIPE_BYTES)
        await it.wait_told(1)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert [len(data) for *_, data in it.told] == [READ_BYTES]
        it.pump.resume(pair)
        await it.wait_told(2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(it.told) == 2
        nursery.cancel_scope.cancel()


async def test_a_drain_takes_what_is_there_and_no_more() -> None:
    with guest() as it:
        pair, out, _ = it.pair()
        os.write(out, b"x" * 60_000)
        taken = b""
        for data in pair.pipes[0].drain():
            taken += data
            os.write(out, b"later")  # whoever writes on can't keep us
        assert taken == b"x" * 60_000


async def test_the_oldest_of_too_many_ended_cells_are_read_and_closed_and_no_others(
    nursery: trio.Nursery,
) -> None:
    with guest(max_open=2) as it:
        orphan, orphan_out, _ = it.pair()
        it.pump.register(orphan)
        ended = [it.pair() for _ in range(4)]
        running, running_out, _ = it.pair()
        it.pump.register(running)
        os.write(ended[0][1], b"last words")
        for pair, *_ in ended:
            it.pump.retire(pair)
        nursery.start_soon(it.pump.run)
        for _, out, err in ended[:2]:
            await reader_gone(out)
            await reader_gone(err)
        assert (1, "stdout", b"last words") in it.told
        assert [pair.open for pair, *_ in ended] == [False, False, True, True]
        it.told.clear()
        os.write(orphan_out, b"kernel")
        await it.wait_told(1)
        os.write(ended[3][1], b"child")
        await it.wait_told(2)
        os.write(running_out, b"cell")
        await it.wait_told(3)
        assert it.told == [
            (0, "stdout", b"kernel"),
            (4, "stdout", b"child"),
            (5, "stdout", b"cell"),
        ]
        nursery.cancel_scope.cancel()


def test_a_pair_that_can_not_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with guest() as it:
        before = descriptors()
        real, calls = os.pipe2, []

        def fail_second(flags: int) -> Any:
            calls.append(flags)
            if len(calls) == 2:
                raise OSError(24, "Too many open files")
            return real(flags)

        monkeypatch.setattr(os, "pipe2", fail_second)
        with pytest.raises(OSError, match="Too many"):
            it.pump.hand_over()
        assert descriptors() == before


def test_a_guest_that_is_gone_is_no_error_of_the_pump() -> None:
    with guest() as it:
        it.link.close()
        pair = it.pump.hand_over()
        assert pair.pipes[0].read() == b""


def test_closing_closes_everything_and_may_be_repeated() -> None:
    before = descriptors()
    it = Guest()
    pair, *_ = it.pair()
    it.close()
    it.pump.close()
    assert not pair.open
    assert descriptors() == before
    it.pump.resume(pair)
    it.pump.retire(pair)


async def test_a_pump_with_a_rate_reads_so_much_a_second_and_saves_up_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with guest(bytes_per_s=10_000) as it:
        pair, out, _ = it.pair()
        it.pump.register(pair)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.pump.run)
            for seconds in (4, 4):
                begun = trio.current_time()
                count = sum(len(data) for _, _, data in it.told)
                os.write(out, bytes(50_000))
                while sum(len(data) for _, _, data in it.told) < count + 50_000:
                    await it.wait_told(len(it.told) + 1)
                # Five seconds' worth, of which one had been saved up.
                assert seconds - 0.2 <= trio.current_time() - begun <= seconds + 0.2
                await trio.sleep(10)
            nursery.cancel_scope.cancel()
