"""A call that is streamed ends in the same object as one that is waited for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from replsvc.config import Config, Service
from replsvc.coordinator import Coordinator
from replsvc.gateways.serve import serve
from replsvc_kernels.background import background_nursery

KEY = "test-key"
OWN = ("id", "seq", "created_at", "started_at", "duration_ms", "times", "usage")
CODES = {
    "value": "6 * 7",
    "text and value": "import sys\nprint('a'); print('b', file=sys.stderr); 'é\\udc80'",
    "long": "for n in range(20_000): print('line', n)",
    "bar": "for n in range(2_000): print(f'\\r{n}', end='')",
    "display": "h = display('1', display_id=True); print('x'); h.update('2')",
    "cleared": "from IPython.display import clear_output\nprint('a'); clear_output(); print('b')",
    "error": "print('before')\n1 / 0",
    "exit": "raise SystemExit(3)",
    "bytes": "import os; n = os.write(1, bytes(range(256)))",
    "dies": "print('last', flush=True)\nimport os; os._exit(7)",
}


@pytest.fixture
async def http(
    coordinator: Coordinator, make_config: Callable[..., Config]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service over `coordinator`."""
    stop = trio.Event()
    listening = Service(port=0)

    async def serving(*, task_status: trio.TaskStatus[str]) -> None:
        await serve(coordinator, listening, keys=(KEY,), stop=stop, task_status=task_status)

    async with background_nursery() as nursery:
        url = await nursery.start(partial(serving))
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            yield client
        stop.set()


async def streamed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The final call of a stream, as its last event has it."""
    last: dict[str, Any] = {}
    headers = {"Accept": "text/event-stream"}
    async with http.stream("POST", path, json=body, headers=headers) as response:
        event = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                event = value
            elif name == "data" and event == "call_finished":
                last = json.loads(value)["data"]["call"]
    return last


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
async def test_streaming_and_plain_give_identical_results(
    http: httpx.AsyncClient, code: str
) -> None:
    finals = []
    for ask in (streamed, None):
        session = (await http.post("/v1/sessions", json={"id": f"s{len(finals)}"})).json()["id"]
        path, body = f"/v1/sessions/{session}/calls", {"input": {"code": code}}
        final = await ask(http, path, body) if ask else (await http.post(path, json=body)).json()
        text = json.dumps({name: value for name, value in final.items() if name not in OWN})
        finals.append(json.loads(text.replace(final["id"], "CALL").replace(session, "SESSION")))
    assert finals[0]["status"] in ("ok", "error", "killed")
    # the log's name is in the notice, which takes its length out of what is shown
    assert finals[0] == finals[1]
