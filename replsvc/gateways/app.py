"""The HTTP application: routes together, errors as problems, OpenAPI, health."""

# No `from __future__ import annotations` here: FastAPI reads the endpoints' annotations.

from collections.abc import Iterable
from typing import Any, Literal

import structlog
import trio
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from replsvc.config import Service
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    InvalidInputError,
    OriginError,
    ReplsvcError,
    ServiceStoppingError,
    StorageError,
    UnauthorizedError,
)
from replsvc.gateways.calls import call_routes
from replsvc.gateways.guard import Guard, log_fault
from replsvc.gateways.inputs import input_routes
from replsvc.gateways.problem import (
    BodyTimeoutError,
    BodyTooLargeError,
    MalformedJsonError,
    MediaTypeError,
    MethodError,
    Problem,
    RouteNotFoundError,
    described,
    internal_error,
    problem_response,
)
from replsvc.gateways.sessions import reply, session_routes

log = structlog.get_logger("replsvc.http")

_DESCRIPTION = """\
A REPL as a tool for agents: a *session* keeps a kernel, a *call* uses one of its tools, an
*extension* adds to what a session can do. Errors are RFC 9457 problems with a stable `code`."""


class Health(BaseModel):
    """The service answers."""

    status: Literal["ok"] = "ok"


def create_app(
    coordinator: Coordinator,
    service: Service,
    *,
    keys: Iterable[str],
    stopping: trio.Event | None = None,
) -> ASGIApp:
    """The ASGI application for an open coordinator, behind its guard.

    `keys` are the only ones that are let in. While `stopping` is set, the service says that it is
    not ready. Raises `ConfigError` for keys that can't be used.
    """
    return Guard(
        _application(coordinator, trio.Event() if stopping is None else stopping), service, keys
    )


def _application(coordinator: Coordinator, stopping: trio.Event) -> FastAPI:
    app = FastAPI(
        title="replsvc",
        summary="Sandboxed REPL sessions for agents",
        description=_DESCRIPTION,
        version=_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    common = described(
        MalformedJsonError,
        UnauthorizedError,
        OriginError,
        BodyTimeoutError,
        BodyTooLargeError,
        MediaTypeError,
        InvalidInputError,
        ReplsvcError,
    )
    for routes in (
        session_routes(coordinator),
        call_routes(coordinator),
        input_routes(coordinator),
    ):
        app.include_router(routes, prefix="/v1", responses=common)
    app.include_router(_health_routes(coordinator, stopping))
    app.add_exception_handler(ReplsvcError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_fault)
    _document(app)
    return app


def _health_routes(coordinator: Coordinator, stopping: trio.Event) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/healthz", response_model=Health, summary="Whether the service lives")
    async def healthz() -> Response:
        """Needs no key."""
        return reply(Health())

    @router.get(
        "/readyz",
        response_model=Health,
        summary="Whether the service takes work",
        responses=described(ServiceStoppingError, StorageError),
    )
    async def readyz() -> Response:
        """Needs no key. Not while the service stops or its log can't be read."""
        if stopping.is_set():
            raise ServiceStoppingError("the service is stopping.", hint="Try another, or later.")
        await coordinator.log.sessions(states=())
        return reply(Health())

    return router


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ReplsvcError)
    if error.http_status >= 500:
        log.warning("request failed", path=request.url.path, code=error.code, error=str(error))
    return problem_response(error, request.url.path)


async def _on_fault(request: Request, error: Exception) -> Response:
    """What is left is a fault of ours."""
    log_fault(request.scope, error)
    return problem_response(internal_error(), request.url.path)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = []
    for item in error.errors():
        where, *path = item["loc"]
        name = ".".join(map(str, path)) or str(where)
        found.append({"field": name, "in": str(where), "message": item["msg"]})
    first = found[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    invalid = InvalidInputError(
        f"{first['field']}: {first['message']}{more}.",
        hint="Mend the named fields; /openapi.json has the schema.",
        details={"errors": found},
    )
    return problem_response(invalid, request.url.path)


async def _on_http(request: Request, error: Exception) -> Response:
    """What the framework itself raises: unknown paths and methods, and unreadable bodies."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if isinstance(error.__cause__, ReplsvcError):
        return problem_response(error.__cause__, path)
    if error.status_code == MethodError.http_status:
        allowed = (error.headers or {}).get("Allow", "")
        refusal: ReplsvcError = MethodError(
            f"{request.method} is not allowed on {path}.", hint=f"Allowed: {allowed}."
        )
        return problem_response(refusal, path, error.headers)
    if error.status_code == RouteNotFoundError.http_status:
        return problem_response(
            RouteNotFoundError(f"there is no {path}.", hint="/openapi.json lists all paths."), path
        )
    raise error


def _document(app: FastAPI) -> None:
    """Complete FastAPI's OpenAPI with what it can't know: the problem's schema and the key."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            parts = schema.setdefault("components", {})
            parts.setdefault("schemas", {})["Problem"] = Problem.model_json_schema()
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    operation["security"] = [{"key": []}] if path.startswith("/v1/") else []
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 - reads the disk

    return version("replsvc")
