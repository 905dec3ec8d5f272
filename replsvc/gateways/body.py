"""Request bodies: collected within a bound, and read as JSON that everything behind can keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import trio
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from replsvc.gateways.problem import (
    BodyTimeoutError,
    BodyTooLargeError,
    MalformedJsonError,
    MediaTypeError,
)

MAX_DEPTH = 64
BODY_TIMEOUT_S = 60.0


class Disconnected(Exception):  # noqa: N818 - not an error: nobody is there to be told
    """The client went away before it had sent its request."""


class Intake:
    """A `receive` that remembers whether all of the request has come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def __call__(self) -> Message:
        """The next message."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.ended = True
        return message

    async def drain(self, most_bytes: int) -> None:
        """Take and forget the rest, up to so many bytes."""
        taken = 0
        while not self.ended and taken < most_bytes:
            taken += len((await self()).get("body", b""))

    async def drain_forever(self) -> None:
        """Take and forget until cancelled or disconnected."""
        while (await self())["type"] == "http.request":
            pass


async def collect(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request.

    Raises `BodyTooLargeError` as soon as it is known to be, `MediaTypeError` for a body that isn't
    declared as JSON (a page can send others to any site without asking), `BodyTimeoutError`, and
    `Disconnected`.
    """
    declared = _header(scope, b"content-length")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_TIMEOUT_S) as clock:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            if chunk := message.get("body", b""):
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
            if not message.get("more_body", False):
                break
    if clock.cancelled_caught:
        raise BodyTimeoutError(
            f"The body did not arrive within {BODY_TIMEOUT_S:g} s.", hint="Send it again."
        )
    if chunks and not _is_json(_header(scope, b"content-type")):
        raise MediaTypeError(
            "The body's Content-Type is not application/json.",
            hint="Send JSON, with Content-Type: application/json.",
        )
    return b"".join(chunks)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the collected body first, then what comes after it."""
    given = False

    async def first_the_body() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first_the_body


def parse(body: bytes) -> Any:
    """The JSON value in `body`. Raises `MalformedJsonError`.

    Stricter than the standard library's, for what is taken in here goes into the log and out again
    to clients in any language: UTF-8 only, no lone surrogates, no NaN and no infinity, at most
    `MAX_DEPTH` levels.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedJsonError(
            f"The body is not valid JSON: {error}.",
            hint="Send UTF-8, without NaN, Infinity and lone surrogates.",
        ) from None
    _check(value)
    return value


def _check(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise MalformedJsonError(
                    "The body has a number that is too large for a 64-bit float.",
                    hint="Send it as a string.",
                )
        if not below:
            return
        level = below
    raise MalformedJsonError(
        f"The body's JSON is nested deeper than {MAX_DEPTH} levels.", hint="Send it flatter."
    )


class StrictRequest(Request):
    """A request whose `json` is `parse`."""

    async def json(self) -> Any:
        """The body's value. Raises `MalformedJsonError`."""
        return parse(await self.body())


class StrictRoute(APIRoute):
    """A route whose bodies are read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a `StrictRequest`."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"The body is larger than {max_bytes} bytes, the most this service takes.",
        hint="Send less, or raise max_body_bytes in the service's settings.",
        details={"limit": max_bytes},
    )


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
