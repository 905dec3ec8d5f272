"""Who may talk to the service: Host, Origin and key, checked before anything else sees a request.

Also the outermost frame of every request: bodies are bounded here, and faults end here.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import traceback
from collections.abc import Iterable, Sequence

import structlog
import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replsvc.config import Service
from replsvc.errors import ConfigError, OriginError, ReplsvcError, UnauthorizedError
from replsvc.gateways import body
from replsvc.gateways.problem import MEDIA_TYPE, internal_error, problem
from replsvc_kernels.background import background_nursery

log = structlog.get_logger("replsvc.http")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = frozenset(("/healthz", "/readyz"))
# How much of a refused body is still taken, so that the client reads the refusal and not a reset.
LINGER_S = 2.0
LINGER_BYTES = 64 * 1024 * 1024

# Responses may hold what a kernel printed: no browser may take them for a page or a script.
_SAFE = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"referrer-policy", b"no-referrer"),
]


def one_time_key(service: Service) -> str | None:
    """A new key when the settings have none; raises `ConfigError` where that would be unsafe.

    It is for whoever starts the service, and dies with it.
    """
    if service.keys:
        return None
    if service.host not in LOOPBACK:
        raise ConfigError(
            f"refusing to listen on {service.host} without keys: others than this machine "
            "could reach it.",
            hint="Set service.keys, or listen on 127.0.0.1.",
        )
    return secrets.token_urlsafe(32)


def log_fault(scope: Scope, error: Exception) -> None:
    """Write a fault of ours to the log.

    Formatted here: a renderer that shows local variables would show the key.
    """
    log.error(
        "request failed",
        method=scope["method"],
        path=scope["path"],
        traceback="".join(traceback.format_exception(error)),
    )


class Guard:
    """ASGI middleware around the whole application; see the module.

    Raises `ConfigError` without any key, or for one that no header can carry.
    """

    def __init__(self, app: ASGIApp, service: Service, keys: Iterable[str]) -> None:
        self._app, self._max_body_bytes = app, service.max_body_bytes
        self._digests = [_digest(_checked(key)) for key in keys]
        if not self._digests:
            raise ConfigError(
                "the service has no key, so nobody could use it.", hint="Set service.keys."
            )
        wildcard = service.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        own = LOOPBACK if wildcard else (*LOOPBACK, service.host)
        self._hosts = frozenset(name.lower() for name in (*own, *service.allowed_hosts))
        self._origins = frozenset(
            origin.lower().removesuffix("/") for origin in service.allowed_origins
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the ASGI protocol."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        intake = body.Intake(receive)
        try:
            self._check(scope)
        except ReplsvcError as error:
            await _refuse(scope, intake, send, error)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            content = await body.collect(scope, intake, self._max_body_bytes)
        except ReplsvcError as error:
            await _refuse(scope, intake, send, error)
        except body.Disconnected:
            return
        else:
            await self._serve(scope, content, intake, send)

    async def _serve(self, scope: Scope, content: bytes, intake: body.Intake, send: Send) -> None:
        started = ended = False

        async def safely(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *_SAFE]
            elif message["type"] == "http.response.body":
                ended = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, body.replay(content, intake), safely)
        except Exception as error:
            if ended:
                return  # answered, and logged, by the application's own handler
            log_fault(scope, error)
            if started:
                # Only a connection that breaks off tells the client that this is not all.
                raise
            await _refuse(scope, intake, send, internal_error())

    def _check(self, scope: Scope) -> None:
        """Raise `OriginError` or `UnauthorizedError` for what must not come further."""
        headers: dict[bytes, list[str]] = {b"host": [], b"origin": [], b"authorization": []}
        for name, value in scope["headers"]:
            if name in headers:
                headers[name].append(value.decode("latin-1").strip())
        hosts, origins = headers[b"host"], headers[b"origin"]
        if len(hosts) != 1 or not self._is_served(hosts[0].lower()):
            raise OriginError(
                "The Host header names no host that is served here.",
                hint="Use the address that the service printed, or add the name to allowed_hosts.",
            )
        if origins and (
            len(origins) != 1 or not self._is_own(origins[0].lower(), hosts[0].lower(), scope)
        ):
            raise OriginError(
                "Requests from pages of that origin are refused.",
                hint="Add the origin to allowed_origins, if its pages may use this service.",
            )
        if scope["path"] not in OPEN_PATHS and not self._is_key(headers[b"authorization"]):
            raise UnauthorizedError(
                "No key came with the request, or a wrong one.",
                hint="Send the header Authorization: Bearer KEY.",
            )

    def _is_served(self, host: str) -> bool:
        return host in self._hosts or _without_port(host) in self._hosts

    def _is_own(self, origin: str, host: str, scope: Scope) -> bool:
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        return origin == f"{scheme}://{host}" or origin in self._origins

    def _is_key(self, values: Sequence[str]) -> bool:
        scheme, _, key = (values[0] if len(values) == 1 else "").partition(" ")
        given = _digest(key.strip())
        # Each is compared, so that time says nothing about which one it was.
        same = [hmac.compare_digest(given, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(same)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _checked(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            "a key in service.keys can't be sent in a header: it is empty, or has characters "
            "other than printable ASCII without spaces.",
            hint="Use something like the output of: openssl rand -hex 32",
        )
    return key


def _without_port(host: str) -> str:
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port[1:].isdigit()) or port[:1] not in ("", ":"):
            return ""
        return name
    name, colon, port = host.partition(":")
    return name if not colon or port.isdigit() else ""


async def _refuse(scope: Scope, intake: body.Intake, send: Send, error: ReplsvcError) -> None:
    """Answer with the problem, whatever the client is still sending."""
    content = problem(error, scope["path"])
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(content)).encode()),
        *_SAFE,
    ]
    if isinstance(error, UnauthorizedError):
        headers.append((b"www-authenticate", b'Bearer realm="replsvc"'))
    if scope["type"] == "websocket":
        await _refuse_upgrade(scope, send, error, headers, content)
        return
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    with trio.move_on_after(LINGER_S):
        await intake.drain(LINGER_BYTES)
    # The server waits for room in its queue before it closes: somebody has to go on taking.
    async with background_nursery() as nursery:
        nursery.start_soon(intake.drain_forever)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse_upgrade(
    scope: Scope,
    send: Send,
    error: ReplsvcError,
    headers: list[tuple[bytes, bytes]],
    content: bytes,
) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send(
        {
            "type": "websocket.http.response.start",
            "status": error.http_status,
            "headers": headers,
        }
    )
    await send({"type": "websocket.http.response.body", "body": content, "more_body": False})
