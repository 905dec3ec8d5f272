from __future__ import annotations

import base64
import socket
from functools import partial
from typing import Any

import httpx
import pytest
import structlog.testing
import trio
import trio.testing
from http_service import KEY, Running, Start

from replsvc.config import Config, Service
from replsvc.coordinator import Coordinator
from replsvc.errors import ConfigError
from replsvc.gateways import connection
from replsvc.gateways.app import create_app
from replsvc.gateways.connection import Connections
from replsvc.gateways.serve import bind, serve, url_of


async def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            await bind(Service(port=port))
    assert "another port" in caught.value.hint


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_this_machine_is_said(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        await bind(Service(host=host, port=0))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("localhost", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
        ("::", "http://[::1]:"),
    ],
)
async def test_port_0_takes_a_free_port_and_the_url_reaches_it(host: str, url: str) -> None:
    try:
        listener = await bind(Service(host=host, port=0))
    except ConfigError:
        assert ":" in host
        pytest.skip("this machine has no IPv6")
    with listener:
        assert url_of(listener).startswith(url)
        assert not url_of(listener).endswith(":0")


async def test_it_is_ready_only_when_requests_are_answered() -> None:
    service = Service(port=0)
    with await bind(service) as listener:
        url = url_of(listener)
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(f"{url}/readyz")
            seen: list[str] = []
            stop = trio.Event()
            async with (
                Coordinator(Config(isolation="none")) as coordinator,
                trio.open_nursery() as nursery,
            ):
                started = await nursery.start(
                    partial(
                        serve,
                        coordinator,
                        service,
                        keys=[KEY],
                        listener=listener,
                        stop=stop,
                        ready=seen.append,
                    )
                )
                assert seen == [url]
                assert started == url
                assert (await http.get(f"{url}/readyz")).status_code == 200
                stop.set()


async def test_no_usable_key_is_said_before_listening() -> None:
    service = Service(port=0)
    with await bind(service) as listener:
        async with Coordinator(Config(isolation="none")) as coordinator:
            with pytest.raises(ConfigError, match="no key"):
                await serve(coordinator, service, keys=(), listener=listener)


async def test_stopping_gives_waiting_clients_their_results_and_ends_streams(
    start: Start,
) -> None:
    code = "print('on', flush=True)\nimport time; time.sleep(600)"
    async with start() as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        async with (
            service.events("/v1/sessions/s/events") as all_events,
            service.events("/v1/sessions/s/calls", post={"input": {"code": code}}) as streamed,
            trio.open_nursery() as nursery,
        ):
            await streamed.until("output")
            queued: list[httpx.Response] = []

            async def wait_in_line() -> None:
                body = {"input": {"code": "1"}, "id": "queued"}
                queued.append(await http.post("/v1/sessions/s/calls", json=body))

            nursery.start_soon(wait_in_line)
            while (await all_events.until("call_started"))["call_id"] != "queued":
                pass
            service.stop.set()
            call = await streamed.final()
            assert (call["status"], call["cause"]["kind"]) == ("killed", "service_stop")
            assert call["output"]["text"] == "on\n"
            assert [frame async for frame in streamed] == []
            async for _ in all_events:
                pass
        assert queued[0].json()["status"] == "cancelled"
        await service.ended.wait()
        assert service.coordinator.list() == ()
        with pytest.raises(httpx.TransportError):
            await http.get("/healthz")


async def test_stopping_does_not_wait_for_a_client_that_does_not_read(start: Start) -> None:
    async with start(service={"stop_deadline_s": 0.5}) as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        async with service.events("/v1/sessions/s/events") as stuck:
            code = "for i in range(30_000): print('x' * 1000)"
            await http.post("/v1/sessions/s/calls", json={"input": {"code": code}})
            service.stop.set()
            await service.ended.wait()
            # What is read now is what the buffers held, and then the end of the connection.
            with pytest.raises((OSError, trio.BrokenResourceError, Exception)):
                async for _ in stuck:
                    pass


async def test_while_it_stops_it_says_that_it_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    async with start() as service, service.client() as http:
        assert (await http.get("/readyz")).status_code == 200
        reached, go_on = trio.Event(), trio.Event()
        end_sessions = service.coordinator.stop

        async def stop_slowly(*, keep_survivors: bool = False) -> None:
            reached.set()
            await go_on.wait()
            await end_sessions(keep_survivors=keep_survivors)

        monkeypatch.setattr(service.coordinator, "stop", stop_slowly)
        service.stop.set()
        await reached.wait()
        refused = await http.get("/readyz")  # on the connection that is there
        assert (refused.status_code, refused.json()["code"]) == (503, "service_stopping")
        assert (await http.get("/healthz")).status_code == 200
        go_on.set()
        await service.ended.wait()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: !\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense nonsense nonsense nonsense",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"\r\nzz\r\n",
    ],
)
async def test_hostile_bytes_end_their_own_connection_only(service: Running, sent: bytes) -> None:
    with structlog.testing.capture_logs():
        async with await service.open_raw() as stream:
            try:
                await stream.send_all(sent)
                await stream.send_eof()
                while await stream.receive_some(65536):
                    pass
            except trio.BrokenResourceError:
                pass  # closed with some of it unread
    async with service.client() as http:
        assert (await http.get("/v1/sessions")).status_code == 200


async def test_an_offer_of_http_2_is_ignored_as_some_clients_make_it_always(
    service: Running,
) -> None:
    settings = base64.urlsafe_b64encode(b"").decode()
    request = (
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        f"Upgrade: h2c\r\nHTTP2-Settings: {settings}\r\n\r\n"
    )
    async with await service.open_raw() as stream:
        await stream.send_all(request.encode())
        answer = await stream.receive_some(65536)
    assert answer.startswith(b"HTTP/1.1 200")


async def test_connections_end_with_their_clients_or_when_idle_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = Connections(create_app(Coordinator(), Service(), keys=[KEY]))
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:

        async def connect_and_ask() -> trio.SocketStream:
            client = await trio.testing.open_stream_to_socket_listener(listeners[0])
            nursery.start_soon(connections.serve, await listeners[0].accept())
            await client.send_all(request)
            assert (await client.receive_some(65536)).startswith(b"HTTP/1.1 200")
            return client

        client = await connect_and_ask()
        await client.aclose()
        await nothing_open(connections)
        monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.05)
        client = await connect_and_ask()
        while await client.receive_some(65536):
            pass  # the rest of the answer, then the end
        await nothing_open(connections)
        await client.aclose()
        await listeners[0].aclose()


async def test_a_client_that_leaves_with_its_answer_in_hand_is_no_fault() -> None:
    outcomes: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        try:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:
            outcomes.append(repr(error))
        else:
            outcomes.append("sent")

    connections = Connections(app)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listeners[0] as listener, trio.open_nursery() as nursery:
        for _ in range(50):  # who runs first is up to the scheduler
            client = await trio.testing.open_stream_to_socket_listener(listener)
            nursery.start_soon(connections.serve, await listener.accept())
            await client.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while b"ok" not in await client.receive_some(65536):
                pass
            await client.aclose()
            await nothing_open(connections)
    assert outcomes == ["sent"] * 50


async def nothing_open(connections: Connections) -> None:
    while len(connections):
        await trio.testing.wait_all_tasks_blocked(0.001)


async def test_importing_the_gateways_starts_nothing_and_coordinators_do_not_need_them() -> None:
    code = (
        "import sys, replsvc.coordinator\n"
        "assert not {'fastapi', 'hypercorn', 'starlette'} & set(sys.modules)\n"
        "import threading, replsvc.gateways.serve\n"
        "assert threading.active_count() == 1"
    )
    import sys

    await trio.run_process([sys.executable, "-c", code])
