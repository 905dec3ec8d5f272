"""What one cell costs: processor time on both sides, its pipes, and how fast it is interrupted."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import trio
from figures import Table

from replsvc import Config, Coordinator
from replsvc.calls import CallRequest
from replsvc.session import Session
from replsvc_kernels._pipes import Pair, Pump

SLEEP = "import asyncio; print('on', flush=True); await asyncio.sleep(60)"
CPU = "__import__('time').process_time()"
# Enough that the two cells which ask for the time are no part of it.
CELLS = 100


async def cells(table: Table, n: int, isolation: str) -> None:
    """All figures of single cells."""
    with tempfile.TemporaryDirectory() as data:
        config = Config.model_validate({"isolation": isolation, "data": Path(data), "pool_max": 0})
        async with Coordinator(config) as coordinator, coordinator.session() as session:
            for _ in range(100):
                await session.run("1+1")
            ours: list[float] = []
            kernel: list[float] = []
            for _ in range(max(3, n // CELLS)):
                before, begin = await _used_s(session), time.process_time()
                for _ in range(CELLS):
                    await session.run("1+1")
                ours.append((time.process_time() - begin) * 1e3 / CELLS)
                kernel.append((await _used_s(session) - before) * 1e3 / CELLS)
            table.add("CPU of a 1+1, in the coordinator", ours, "ms")
            table.add("CPU of a 1+1, in the kernel", kernel, "ms")
            table.add("interrupt of a sleeping await, to its end", await _interrupts(session), "ms")
        table.add("pipes of a cell, made to closed", await _pipes(n), "ms")


async def _used_s(session: Session) -> float:
    text = (await session.run(CPU)).text
    assert text is not None
    return float(text.removeprefix("=> "))


async def _interrupts(session: Session) -> list[float]:
    taken: list[float] = []
    for _ in range(20):
        running = await session.submit(CallRequest(input={"code": SLEEP}))
        async for events in session.log.follow(session.id, call_id=running.id):
            if any(event.kind == "output" for event in events):
                break
        begin = time.perf_counter()
        await session.interrupt()
        call = await running.wait()
        taken.append((time.perf_counter() - begin) * 1e3)
        assert call.status == "interrupted", call
    return taken


async def _pipes(n: int) -> list[float]:
    """What the capture of output adds to a cell that prints nothing, both sides in this process.

    A pair is made and sent; taken, put in front and back, marked as the guest marks it; and read to
    its end.
    """
    host, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.setblocking(False)
    front = [os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) for _ in range(2)]
    taken: list[float] = []
    with guest:
        pump = Pump(host, max_open=8)
        try:
            for _ in range(10 * n):
                begin = time.perf_counter()
                pair = pump.hand_over()
                _, ends, _, _ = socket.recv_fds(guest, 4096, 2)
                kept = [os.dup(fd) for fd in front]
                for place, end, back in zip(front, ends, kept, strict=True):
                    os.dup2(end, place)
                    os.write(place, b"\x1b]9913;0123456789abcdef;1\x07")
                    os.dup2(back, place)
                    os.close(end)
                    os.close(back)
                _read(pump, pair)
                taken.append((time.perf_counter() - begin) * 1e3)
        finally:
            pump.close()
            for fd in front:
                os.close(fd)
    return taken


def _read(pump: Pump, pair: Pair) -> None:
    for pipe in pair.pipes:
        while pipe.read():
            pass
        pump.close_pipe(pipe)


if __name__ == "__main__":
    trio.run(cells, Table(), 600, "best")
