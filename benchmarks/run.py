"""The figures of the README, with one command:

    python benchmarks/run.py [--isolation best] [--density 1500] [--quick] [--json FILE]

Everything runs against the real service on this machine: in process and over HTTP keep-alive from a
client in a process of its own. Each figure has its median, p99 and count; the stock kernel beside
ours, through jupyter_client in the same run, gives the ratio. Trust ratios more than figures:
machines differ. `sessions.py` has what comes and goes, `density.py` what is there in numbers,
`cells.py` what one cell costs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio
from cells import cells
from density import density, memory
from figures import Table, machine, timed
from sessions import sessions

from replsvc import Config, Coordinator
from replsvc.config import Limits

PRINT_10MB = "for _ in range(100_000): print('x' * 99)"


async def in_process(table: Table, n: int, isolation: str) -> None:
    """Calls without HTTP, log on disk."""
    limits = Limits(max_output_bytes=50_000)
    with tempfile.TemporaryDirectory() as data:
        config = Config.model_validate(
            {"isolation": isolation, "data": Path(data), "limits": limits}
        )
        async with Coordinator(config) as coordinator:
            async with coordinator.session() as session:
                for _ in range(20):
                    await session.run("1+1")
                warm: list[float] = []
                for _ in range(n):
                    begin = time.perf_counter()
                    assert (await session.run("1+1")).text == "=> 2"
                    warm.append((time.perf_counter() - begin) * 1e3)
                table.add("1+1 warm, in process", warm, "ms")
                prints: list[float] = []
                for _ in range(5):
                    begin = time.perf_counter()
                    call = await session.run(PRINT_10MB)
                    prints.append((time.perf_counter() - begin) * 1e3)
                    assert call.output.total_bytes == 10_000_000
                    assert call.output.dropped_bytes == 0
                table.add("10 MB of prints, all of it in the log", prints, "ms")
            await throughput(table, coordinator, 8, 1.0 if n < 200 else 5.0)


async def throughput(table: Table, coordinator: Coordinator, sessions: int, for_s: float) -> None:
    """Calls a second with several sessions busy at once, second by second."""
    async with trio.open_nursery() as nursery:
        stamps: list[float] = []
        opened = trio.Event()
        ready = 0

        async def loop() -> None:
            nonlocal ready
            async with coordinator.session() as session:
                await session.run("1+1")
                ready += 1
                if ready == sessions:
                    opened.set()
                await opened.wait()
                end = time.perf_counter() + for_s
                while time.perf_counter() < end:
                    assert (await session.run("1+1")).text == "=> 2"
                    stamps.append(time.perf_counter())

        for _ in range(sessions):
            nursery.start_soon(loop)
    first = min(stamps)
    whole = int(for_s)
    rates = [sum(first + s <= t < first + s + 1 for t in stamps) for s in range(whole)]
    table.add(f"calls a second, {sessions} sessions at once", [float(r) for r in rates], "1/s")


def over_http(table: Table, n: int, isolation: str) -> None:
    """The same call through `replsvc serve`, from a keep-alive connection."""
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory, "ready.json")
        command = [
            *(sys.executable, "-m", "replsvc", "serve", "--isolation", isolation, "--port", "0"),
            *("--data", str(Path(directory, "data")), "--ready-file", str(ready)),
        ]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if server.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {server.returncode}")
                time.sleep(0.01)
            where = json.loads(ready.read_text())
            host, port = where["url"].removeprefix("http://").rstrip("/").split(":")
            headers = {
                "Authorization": f"Bearer {where['key']}",
                "Content-Type": "application/json",
            }
            connection = http.client.HTTPConnection(host, int(port))

            def post(path: str, body: object) -> dict[str, object]:
                connection.request("POST", path, json.dumps(body), headers)
                answer = json.loads(connection.getresponse().read())
                assert isinstance(answer, dict)
                return answer

            session = post("/v1/sessions", {})["id"]
            body = {"tool": "repl", "input": {"code": "1+1"}}

            def call() -> None:
                answer = post(f"/v1/sessions/{session}/calls", body)
                assert answer["status"] == "ok", answer

            for _ in range(20):
                call()
            table.add("1+1 warm, over HTTP keep-alive", [timed(call) for _ in range(n)], "ms")
            connection.request("GET", "/healthz", headers=headers)
            connection.getresponse().read()

            def health() -> None:
                connection.request("GET", "/healthz", headers=headers)
                connection.getresponse().read()

            table.add(
                "a trivial route over HTTP keep-alive", [timed(health) for _ in range(n)], "ms"
            )
        finally:
            server.terminate()
            server.wait()


def stock(table: Table, n: int) -> None:
    """The peer in the same run: ipykernel as it is, through jupyter_client's blocking client."""
    from jupyter_client.manager import start_new_kernel

    ready: list[float] = []
    for _ in range(max(3, n // 100)):
        begin = time.perf_counter()
        manager, client = start_new_kernel(kernel_name="python3")
        client.execute_interactive("1+1", output_hook=lambda _message: None)
        ready.append((time.perf_counter() - begin) * 1e3)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    table.add("stock kernel, jupyter_client: ready", ready, "ms")
    manager, client = start_new_kernel(kernel_name="python3")

    def call() -> None:
        client.execute_interactive("1+1", output_hook=lambda _message: None)

    try:
        for _ in range(20):
            call()
        table.add("stock kernel, jupyter_client: 1+1 warm", [timed(call) for _ in range(n)], "ms")
        prints = [
            timed(lambda: client.execute_interactive(PRINT_10MB, output_hook=lambda _message: None))
            for _ in range(3)
        ]
        table.add("stock kernel, jupyter_client: 10 MB of prints", prints, "ms")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isolation", default="none", help="none or best")
    parser.add_argument("--density", type=int, default=0, help="so many live sessions at once")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    n = 60 if options.quick else 600
    print(machine())
    table = Table()
    trio.run(sessions, table, n, options.isolation)
    trio.run(memory, table, 4 if options.quick else 20, options.isolation)
    if options.density:
        trio.run(density, table, options.density, options.isolation)
    trio.run(in_process, table, n, options.isolation)
    trio.run(cells, table, n, options.isolation)
    over_http(table, n, options.isolation)
    stock(table, n)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine(), "figures": table.rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
