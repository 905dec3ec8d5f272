"""A host of lasting kernels that keeps their output in a file, and may be killed at any time.

`python lasting.py PLACE CODE` is one in a process of its own: it opens the kernel, or goes on with
the one that an earlier host left, runs CODE as its only cell, and says a line for each output that
is in its log. The same functions serve a test's own process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels._wire import WireKernel
from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.surviving import SurvivingServers
from replsvc_kernels.kernel import Cell, LastingKernel, LaunchSpec
from replsvc_kernels.messages import DisplayData, ExecuteResult, Kept, Reply, Stream

CELL = "c1"


class Log:
    """What a host has kept of a cell: one line an output, whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, output: object) -> None:
        line: dict[str, Any] = {}
        if isinstance(output, Stream):
            line = {"name": output.name, "data": output.data.hex(), "upto": output.upto}
        elif isinstance(output, DisplayData | ExecuteResult):
            line = {"mark": output.mark, "text": output.data["text/plain"]}
        # One system call: a host that is killed has written all of it or nothing.
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def kept(self) -> Kept:
        streams: dict[Any, int] = {}
        mark = 0
        for line in self.lines():
            if line.get("upto") is not None:
                streams[line["name"]] = line["upto"]
            mark = max(mark, line.get("mark") or 0)
        return Kept(streams, mark)

    def text(self, name: str) -> bytes:
        return b"".join(
            bytes.fromhex(line["data"]) for line in self.lines() if line.get("name") == name
        )

    def displays(self) -> list[str]:
        return [line["text"] for line in self.lines() if "mark" in line]


def spec_in(place: Path, name: str = "one") -> LaunchSpec:
    workspace = place / "sessions" / name / "work"
    if not workspace.exists():
        workspace.parent.mkdir(mode=0o711)
        workspace.mkdir(mode=0o700)
    return LaunchSpec(str(workspace), python=sys.executable)


@asynccontextmanager
async def serving(place: Path, grace_s: float = 60) -> AsyncIterator[SurvivingServers]:
    runtime = place / f"runtime-{os.getpid()}-{len(list(place.iterdir()))}"
    runtime.mkdir()
    others = ForkServers(runtime, place / "sessions")
    servers = SurvivingServers(others, runtime, place / "sessions", place / "data", grace_s)
    async with servers.running():
        yield servers


@asynccontextmanager
async def lasting(
    servers: SurvivingServers,
    place: Path,
    kept: Kept,
    running: str | None = CELL,
    name: str = "one",
) -> AsyncIterator[LastingKernel]:
    """The kernel that was left, or a new one."""
    if not servers.held:
        await servers.find()
    if name in servers.left:
        kept_of = dict.fromkeys(servers.cells_of(name), kept)
        async with servers.adopt(name, spec_in(place, name), kept_of, running) as kernel:
            yield kernel
    else:
        await servers.start()
        backend = servers.backend(sys.executable)
        async with backend.open(spec_in(place, name)) as kernel:
            assert isinstance(kernel, LastingKernel)
            yield kernel


async def run_cell(
    kernel: LastingKernel, code: str, log: Log, said: Callable[[], None] = lambda: None
) -> Reply:
    async with kernel.resume(code, cell=CELL) as cell:
        return await _logged(kernel, cell, log, said)


async def _logged(kernel: LastingKernel, cell: Cell, log: Log, said: Callable[[], None]) -> Reply:
    async for output in cell:
        log.add(output)
        kernel.keep(CELL, log.kept())
        said()
    assert cell.reply is not None
    return cell.reply


async def main(place: Path, code: str, *options: str) -> None:
    def said() -> None:
        os.write(1, b".\n")

    log = Log(place / "log")
    if "unsent" in options:
        WireKernel._send = _die_instead  # type: ignore[method-assign]
    grace_s = 0.01 if "hurried" in options else 60
    async with serving(place, grace_s) as servers, lasting(servers, place, log.kept()) as kernel:
        os.write(1, f"{kernel.info.pid}\n".encode())
        await run_cell(kernel, code, log, said)
        os.write(1, b"end\n")
        await trio.sleep_forever()


async def _die_instead(kernel: WireKernel, channel: Any, type_: str, *rest: Any) -> str:
    """Be killed at the last moment before a cell is asked for."""
    if type_ == "execute_request":
        os.kill(os.getpid(), signal.SIGKILL)
    return await send(kernel, channel, type_, *rest)


send = WireKernel._send

if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), *sys.argv[2:])
