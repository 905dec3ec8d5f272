"""A real service on a free port, with a real coordinator, in the test's own trio run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from http_service import KEY, Running, Start

from replsvc.config import Config, Limits, Service
from replsvc.coordinator import Coordinator
from replsvc.gateways.serve import serve
from replsvc_kernels.background import background_nursery


@pytest.fixture
def start() -> Start:
    """Start a service: `start(service={...}, limits={...}, **config)`."""

    @asynccontextmanager
    async def run(
        service: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Running]:
        listening = Service(port=0, **(service or {}))
        config = Config(
            limits=Limits.model_validate({"interrupt_grace_s": 0.5, **(limits or {})}),
            service=listening,
            **{"isolation": "none", **settings},
        )
        ended = trio.Event()

        async def serving(
            coordinator: Coordinator, stop: trio.Event, *, task_status: trio.TaskStatus[str]
        ) -> None:
            try:
                await serve(
                    coordinator,
                    listening,
                    keys=listening.keys or (KEY,),
                    stop=stop,
                    task_status=task_status,
                )
            finally:
                ended.set()

        async with Coordinator(config) as coordinator, background_nursery() as nursery:
            stop = trio.Event()
            url = await nursery.start(partial(serving, coordinator, stop))
            yield Running(url, coordinator, stop, ended)

    return run


@pytest.fixture
async def service(start: Start) -> AsyncIterator[Running]:
    async with start() as running:
        yield running


@pytest.fixture
async def http(service: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `service`."""
    async with service.client() as client:
        yield client


@pytest.fixture
async def sid(http: httpx.AsyncClient) -> str:
    """An open session of `service`."""
    response = await http.post("/v1/sessions", json={})
    assert response.status_code == 201, response.text
    identifier: str = response.json()["id"]
    return identifier
