from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from http_service import KEY, Running, Start
from hypothesis import given
from hypothesis import strategies as st

from replsvc.config import Service
from replsvc.errors import ConfigError
from replsvc.gateways.guard import Guard, one_time_key

WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}


async def status_of(service: Service, path: str = "/v1/sessions", **headers: str) -> int:
    """What the guard answers to a request with these headers; 200 when it lets it through."""
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await trio.sleep_forever()
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "scheme": "http",
        "method": "GET",
        "path": path,
        "headers": [
            (name.lower().replace("_", "-").encode(), value.encode("utf-8", "surrogatepass"))
            for name, value in headers.items()
        ],
    }
    await Guard(app, service, [KEY])(scope, receive, send)  # type: ignore[arg-type]
    return statuses[0]


async def test_every_route_wants_the_key_and_an_allowed_host_and_origin(
    http: httpx.AsyncClient, service: Running
) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    asked = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, operations in paths.items()
        for method in operations
    ] + [("GET", "/openapi.json"), ("GET", "/nowhere"), ("OPTIONS", "/v1/sessions"), ("GET", "/")]
    assert len(asked) > 15
    async with service.client(key=None) as stranger:
        for method, path in asked:
            for headers, code in [
                ({}, "unauthorized"),
                ({"Authorization": "Bearer wrong"}, "unauthorized"),
                ({"Authorization": f"Bearer {KEY}", "Host": "evil.example"}, "origin_refused"),
                ({"Authorization": f"Bearer {KEY}", "Origin": "null"}, "origin_refused"),
                ({"Authorization": f"Bearer {KEY}", "Origin": "http://a.b"}, "origin_refused"),
            ]:
                if code == "unauthorized" and path in ("/healthz", "/readyz"):
                    continue
                response = await stranger.request(method, path, headers=headers)
                assert response.status_code == (401 if code == "unauthorized" else 403)
                assert response.headers["content-type"] == "application/problem+json"
                assert response.json()["code"] == code
                assert "access-control-allow-origin" not in response.headers
                challenge = response.headers.get("www-authenticate")
                assert challenge == ('Bearer realm="replsvc"' if code == "unauthorized" else None)


async def test_health_needs_no_key(service: Running) -> None:
    async with service.client(key=None) as stranger:
        for path in ("/healthz", "/readyz"):
            response = await stranger.get(path)
            assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_a_key_counts_only_as_one_bearer_header(service: Running) -> None:
    async with service.client(key=None) as stranger:
        for headers in (
            [("Authorization", f"Basic {KEY}")],
            [("Authorization", KEY)],
            [("Authorization", f"Bearer {KEY}"), ("Authorization", f"Bearer {KEY}")],
            [("Authorization", f"Bearer {KEY}x")],
            [("Authorization", "Bearer")],
            [("Cookie", f"key={KEY}")],
        ):
            response = await stranger.get(f"/v1/sessions?key={KEY}", headers=headers)
            assert response.status_code == 401, headers
        lower = await stranger.get("/v1/sessions", headers={"authorization": f"bearer {KEY}"})
        assert lower.status_code == 200


async def test_each_configured_key_is_let_in(start: Start) -> None:
    async with start(service={"keys": ("old-key", "new-key")}) as service:
        for key, status in (("old-key", 200), ("new-key", 200), (KEY, 401)):
            async with service.client(key) as http:
                assert (await http.get("/v1/sessions")).status_code == status


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:1", True),
        ("LocalHost:8747", True),
        ("[::1]:8747", True),
        ("[::1]", True),
        ("repl.example", True),
        ("repl.example:443", True),
        ("exact.example:443", True),
        ("exact.example:444", False),
        ("exact.example", False),
        ("10.0.0.7:8747", True),
        ("localhost.evil.example", False),
        ("localhost:80@evil.example", False),
        ("evil.example#localhost", False),
        ("localhost:", False),
        ("localhost:x", False),
        ("[::1", False),
        ("[::1]x", False),
        ("0.0.0.0", False),
        ("", False),
    ],
)
async def test_only_names_of_this_service_are_served(host: str, served: bool) -> None:
    service = Service(host="10.0.0.7", allowed_hosts=("repl.example", "exact.example:443"))
    status = await status_of(service, host=host, authorization=f"Bearer {KEY}")
    assert status == (200 if served else 403)


async def test_a_wildcard_address_is_no_name_of_the_service() -> None:
    for address in ("0.0.0.0", "::"):
        service = Service(host=address)
        assert await status_of(service, host="0.0.0.0:8747", authorization=f"Bearer {KEY}") == 403


@pytest.mark.parametrize(
    ("origin", "let_in"),
    [
        ("http://localhost:8747", True),
        ("HTTP://LOCALHOST:8747", True),
        ("http://localhost:8748", False),
        ("https://localhost:8747", False),
        ("http://127.0.0.1:8747", False),
        ("http://localhost:8747.evil.example", False),
        ("https://app.example", True),
        ("http://app.example", False),
        ("null", False),
        ("", False),
    ],
)
async def test_only_pages_of_the_same_or_an_allowed_origin_are_let_in(
    origin: str, let_in: bool
) -> None:
    service = Service(allowed_origins=("https://app.example/",))
    status = await status_of(
        service, host="localhost:8747", origin=origin, authorization=f"Bearer {KEY}"
    )
    assert status == (200 if let_in else 403)


async def test_no_host_at_all_is_refused() -> None:
    assert await status_of(Service(), authorization=f"Bearer {KEY}") == 403


@given(st.text())
def test_no_text_but_the_key_is_the_key(text: str) -> None:
    async def ask() -> int:
        return await status_of(Service(), host="localhost", authorization=f"Bearer {text}")

    assert trio.run(ask) == (200 if text.strip() == KEY else 401)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, b"401"),
        ({"Authorization": f"Bearer {KEY}", "Origin": "http://evil.example"}, b"403"),
        ({"Authorization": f"Bearer {KEY}", "Host": "evil.example"}, b"403"),
        ({"Authorization": f"Bearer {KEY}", "Origin": "null"}, b"403"),
    ],
)
async def test_upgrades_are_guarded_like_every_request(
    service: Running, headers: dict[str, str], status: bytes
) -> None:
    sent = {"Host": "localhost", **WEBSOCKET, **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    async with await service.open_raw() as stream:
        await stream.send_all(f"GET /v1/sessions HTTP/1.1\r\n{lines}\r\n".encode())
        answer = await read_all(stream)
    assert answer.split(b" ")[1] == status
    assert b"application/problem+json" in answer


async def read_all(stream: trio.SocketStream) -> bytes:
    answer = b""
    while chunk := await stream.receive_some(65536):
        answer += chunk
    return answer


async def test_a_refused_body_is_not_waited_for_and_its_sender_reads_the_refusal(
    service: Running,
) -> None:
    size = 8 * 1024 * 1024
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    async with await service.open_raw() as stream, trio.open_nursery() as nursery:
        await stream.send_all(head.encode())

        async def send() -> None:
            await stream.send_all(b"x" * size)

        nursery.start_soon(send)
        answer = b""
        while b"unauthorized" not in answer:
            answer += await stream.receive_some(65536)
        assert answer.startswith(b"HTTP/1.1 401")


async def test_a_refused_body_that_never_ends_holds_the_service_up_no_longer(
    service: Running,
) -> None:
    head = "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    async with await service.open_raw() as stream, trio.open_nursery() as nursery:
        await stream.send_all(head.encode())

        async def send_for_ever() -> None:
            try:
                while True:
                    await stream.send_all(chunk)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(send_for_ever)
        received = await stream.receive_some(65536)
        assert received.startswith(b"HTTP/1.1 401")
        # The service closes, so the sending task ends, and the nursery with it.


async def test_a_key_is_made_only_where_nobody_else_can_connect() -> None:
    first, second = one_time_key(Service()), one_time_key(Service(host="localhost"))
    assert first is not None
    assert second is not None
    assert first != second
    assert len(first) >= 43
    assert one_time_key(Service(host="0.0.0.0", keys=("k",))) is None
    with pytest.raises(ConfigError, match=r"without keys.*service\.keys"):
        one_time_key(Service(host="0.0.0.0"))


@pytest.mark.parametrize("keys", [(), ("",), ("two words",), ("naïve",), ("new\nline",)])
def test_keys_that_could_never_be_sent_are_refused_at_once(keys: tuple[str, ...]) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    with pytest.raises(ConfigError, match="key"):
        Guard(app, Service(), keys)
