"""Errors as RFC 9457 problems: their JSON, and the errors that only HTTP has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from replsvc.errors import NotFoundError, ReplsvcError

MEDIA_TYPE = "application/problem+json"


class MalformedJsonError(ReplsvcError):
    """Raised when a body is not JSON that can be kept. Nothing was done."""

    code, http_status, title = "malformed_json", 400, "Body is not valid JSON"


class BodyTimeoutError(ReplsvcError):
    """Raised when a body does not arrive in time. Nothing was done."""

    code, http_status, title = "body_timeout", 408, "Body did not arrive"


class BodyTooLargeError(ReplsvcError):
    """Raised when a body is larger than `max_body_bytes`. Nothing was done."""

    code, http_status, title = "body_too_large", 413, "Body is too large"


class MediaTypeError(ReplsvcError):
    """Raised for a body that is not declared as JSON. Nothing was done."""

    code, http_status, title = "unsupported_media_type", 415, "Body must be application/json"


class RouteNotFoundError(NotFoundError):
    """Raised for a path that names nothing."""

    code, title = "route_not_found", "No such path"


class MethodError(ReplsvcError):
    """Raised for a method that a path does not have."""

    code, http_status, title = "method_not_allowed", 405, "Method is not allowed here"


class Problem(BaseModel):
    """What went wrong, and what to do about it. Some codes have members beyond these."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="identifies the kind of problem; `code` says the same, shorter")
    title: str = Field(description="the kind of problem, for people")
    status: int = Field(description="the HTTP status")
    code: str = Field(description="the kind of problem, for programs; does not change")
    detail: str = Field(description="what happened this time")
    hint: str = Field(description="what to do about it; may be empty")
    instance: str = Field(description="the path that was asked for")


def problem(error: ReplsvcError, instance: str) -> bytes:
    """The problem's JSON, in ASCII, so that no text in it can fail to be sent."""
    body = {
        "type": f"urn:replsvc:problem:{error.code}",
        "title": error.title,
        "status": error.http_status,
        "code": error.code,
        "detail": error.message,
        "hint": error.hint,
        "instance": instance,
    }
    return json.dumps({**error.details, **body}).encode()


def problem_response(
    error: ReplsvcError, instance: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The problem as a response."""
    return Response(
        problem(error, instance), error.http_status, headers=headers, media_type=MEDIA_TYPE
    )


def internal_error() -> ReplsvcError:
    """What a client is told of a fault of ours: that there was one, and nothing of its inside."""
    return ReplsvcError(
        "The service has failed to carry this out.",
        hint="Its log says why. What was acknowledged before is kept.",
    )


def described(*errors: type[ReplsvcError]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's responses for these errors, those of one status together."""
    found: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        line = f"`{error.code}`: {error.title}"
        known = found.get(error.http_status)
        found[error.http_status] = {
            "description": line if known is None else f"{known['description']}; {line}",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found
