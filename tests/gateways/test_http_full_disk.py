"""A full disk is the service's failure over HTTP: 507 with its code, and it heals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from http_service import Start

pytestmark = pytest.mark.needs("mount")


async def test_calls_fail_with_a_code_whether_streamed_or_not_until_there_is_room(
    start: Start, tmp_path: Path, mount: Callable[..., None]
) -> None:
    mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path))
    loud: dict[str, Any] = {"input": {"code": "print('o' * 3_000_000)"}}
    async with start(data=tmp_path / "data") as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        path = "/v1/sessions/s/calls"
        await http.post(path, json={"input": {"code": "x = 41"}})
        with (tmp_path / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

        refused = await http.post(path, json=loud)
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_unavailable")
        assert refused.headers["content-type"] == "application/problem+json"
        assert "Free space" in refused.json()["hint"]
        streamed = await http.post(path, json=loud, headers={"Accept": "text/event-stream"})
        # Whether the call's start still fitted decides if the stream had begun.
        assert streamed.status_code in (200, 507)
        assert "storage_unavailable" in streamed.text
        assert "call_finished" not in streamed.text

        (tmp_path / "filler").unlink()
        call = (await http.post(path, json={"input": {"code": "x + 1"}})).json()
        assert call["content"] == [{"type": "text", "text": "=> 42"}]
        assert (await http.post(path, json=loud)).json()["output"]["total_bytes"] == 3_000_001
