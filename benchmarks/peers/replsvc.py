"""Adapter for the peer harness: `replsvc serve`, one session a harness session, over HTTP.

Put it into the harness's `adapters/`, and into its registry:
`"replsvc": ("adapters.replsvc", "Replsvc", "<a venv with replsvc and psutil>")` for numbers, and
the class `Followed` for behaviours: it follows calls' events, and so has both streams apart.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from base import Adapter, Result, pkg_versions, tree


class Replsvc(Adapter):
    """See the module."""

    name, label = "replsvc", "replsvc serve (guest kernel per session)"
    kind = "server, kernel per session"
    asked = "none"
    native_timeout = True
    server: subprocess.Popen[bytes] | None = None
    client: httpx.AsyncClient

    @classmethod
    def versions(cls) -> dict[str, str]:
        return pkg_versions("replsvc", "ipykernel", "hypercorn", "trio", "pyzmq")

    @classmethod
    async def server_start(cls) -> None:
        directory = tempfile.mkdtemp()
        ready = Path(directory, "ready.json")
        command = [
            *(sys.executable, "-m", "replsvc", "serve", "--isolation", cls.asked, "--port", "0"),
            *("--ready-file", str(ready), "--data", str(Path(directory, "data"))),
        ]
        # The log's default bound is 64 MiB a call; one behaviour prints 100 MB.
        cls.server = subprocess.Popen(
            command,
            env={**os.environ, "REPLSVC_LIMITS__MAX_LOG_BYTES": str(256 * 2**20)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not ready.exists():
            if cls.server.poll() is not None:
                raise RuntimeError(f"replsvc serve ended with {cls.server.returncode}")
            await asyncio.sleep(0.02)
        where = json.loads(ready.read_text())
        cls.client = httpx.AsyncClient(
            base_url=where["url"],
            headers={"Authorization": f"Bearer {where['key']}"},
            timeout=None,
            limits=httpx.Limits(max_connections=200, max_keepalive_connections=200),
        )

    @classmethod
    async def server_stop(cls) -> None:
        await cls.client.aclose()
        assert cls.server is not None
        cls.server.terminate()
        await asyncio.to_thread(cls.server.wait)

    @classmethod
    def server_pids(cls) -> list[int]:
        return [cls.server.pid] if cls.server is not None else []

    async def create(self, mem_limit: int | None = None, exec_timeout: float | None = None) -> None:
        limits: dict[str, float] = {} if exec_timeout is None else {"timeout_s": exec_timeout}
        if mem_limit is not None and self.native_mem_limit:
            limits["memory_bytes"] = mem_limit
        self.limit_s = exec_timeout or 120.0
        answer = await self.client.post("/v1/sessions", json={"limits": limits})
        answer.raise_for_status()
        self.path = f"/v1/sessions/{answer.json()['id']}"
        if self.asked == "none":  # elsewhere it has another number outside
            call = await self._call("import os; os.getpid()", self.limit_s)
            self.pid = int(call["result"]["text/plain"])

    def pids(self) -> list[int]:
        parent = int(Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return tree(parent if parent != os.getpid() else self.pid)

    async def _call(self, code: str, timeout_s: float | None) -> dict:
        body: dict = {"tool": "repl", "input": {"code": code}}
        if timeout_s is not None:
            body["timeout_s"] = timeout_s
        answer = await self.client.post(f"{self.path}/calls", json=body)
        answer.raise_for_status()
        return answer.json()

    async def execute(self, code: str, timeout: float | None = 60) -> Result:
        try:
            call = await self._call(code, timeout)
        except httpx.HTTPError as error:
            return Result("died", error=f"{type(error).__name__}: {error}"[:200])
        result = self._result(call)
        if call["output"]["truncated"]:
            # The model view is short on purpose; the whole log is one request away.
            log = await self.client.get(f"{self.path}/artifacts/{call['output']['artifact']}")
            result.stdout = log.text
        return result

    @staticmethod
    def _result(call: dict) -> Result:
        status = {"ok": "ok", "timeout": "timeout", "killed": "died"}.get(call["status"], "error")
        result = Result(status, stdout=call["output"]["text"])
        if call["result"]:
            result.value = call["result"].get("text/plain")
        if call["error"]:
            result.error = f"{call['error']['ename']}: {call['error']['evalue']}"
        elif call["cause"]:
            result.error = f"{call['cause']['kind']}: {call['cause']['message']}"
        result.images = sum(part["type"] == "image" for part in call["content"])
        if call["state_lost"]:
            result.notes.append("state_lost")
        return result

    async def interrupt(self) -> None:
        await self.client.post(f"{self.path}/interrupt")

    async def close(self) -> None:
        await self.client.delete(self.path)


class Followed(Replsvc):
    """The same, isolated, with each call's events followed: streams apart, and what comes late."""

    label = "replsvc serve (isolated kernel per session)"
    isolation = "namespaces, seccomp, Landlock, control groups"
    asked = "required"
    native_mem_limit = True

    async def create(self, mem_limit: int | None = None, exec_timeout: float | None = None) -> None:
        self.late: list[str] = []
        await super().create(mem_limit, exec_timeout)
        self._follower = asyncio.create_task(self._follow())

    async def close(self) -> None:
        await super().close()
        await self._follower

    async def _follow(self) -> None:
        async for _, data in self._events("GET", f"{self.path}/events", None):
            if data["data"].get("background"):
                self.late.append(data["data"].get("text", ""))

    async def _events(self, method: str, path: str, body: dict | None) -> AsyncIterator[tuple]:
        headers = {"Accept": "text/event-stream"}
        async with self.client.stream(method, path, json=body, headers=headers) as answer:
            answer.raise_for_status()
            kind = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield kind, json.loads(value)

    async def execute(self, code: str, timeout: float | None = 60) -> Result:
        body: dict = {"tool": "repl", "input": {"code": code}}
        if timeout is not None:
            body["timeout_s"] = min(timeout, self.limit_s)
        printed: dict[str, list[str]] = {"stdout": [], "stderr": []}
        call: dict = {}
        async for kind, data in self._events("POST", f"{self.path}/calls", body):
            output = data.get("data") or {}
            if kind == "output" and output.get("type") == "stream":
                printed[output["name"]].append(output.get("text", ""))
            elif kind == "call_finished":
                call = output["call"]
        result = self._result(call)
        result.stdout, result.stderr = ("".join(printed[name]) for name in ("stdout", "stderr"))
        return result
