"""Routes of sessions: open, see, control, close."""

# No `from __future__ import annotations` here: FastAPI reads the endpoints' annotations.

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from replsvc.calls import Value
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    BackendUnavailableError,
    ConflictError,
    ExtensionError,
    ExtensionSetupError,
    InvalidInputError,
    IsolationUnavailableError,
    QuotaExceededError,
    ServiceStoppingError,
    SessionClosedError,
    SessionNotFoundError,
    StartupFailedError,
    StartupTimeoutError,
    StorageError,
)
from replsvc.gateways.body import StrictRoute
from replsvc.gateways.encoding import to_json
from replsvc.gateways.problem import described
from replsvc.gateways.stream import Gone, until_gone
from replsvc.session_values import InterruptResult, SessionInfo, SessionRequest

START_ERRORS = (
    BackendUnavailableError,
    ExtensionError,
    ExtensionSetupError,
    IsolationUnavailableError,
    StartupFailedError,
    StartupTimeoutError,
)


class SessionList(BaseModel):
    """The open sessions, oldest first."""

    sessions: tuple[SessionInfo, ...]


class InterruptRequest(Value):
    """`force` goes on to terminate and kill, which loses the names."""

    force: bool = False


class McpTool(BaseModel):
    """A tool as the Model Context Protocol describes it."""

    name: str
    description: str
    inputSchema: dict[str, Any] = Field(description="JSON Schema of the input")  # noqa: N815 - MCP's


class ToolList(BaseModel):
    """What a call of the session may name."""

    tools: tuple[McpTool, ...]


def reply(value: BaseModel, status: int = 200) -> Response:
    """The value as the response; FastAPI would validate and encode it a second time."""
    return Response(to_json(value), status, media_type="application/json")


def session_routes(coordinator: Coordinator) -> APIRouter:
    """The routes, for one coordinator."""
    router = APIRouter(route_class=StrictRoute, tags=["sessions"])

    @router.post(
        "/sessions",
        status_code=201,
        response_model=SessionInfo,
        summary="Open a session",
        responses={
            200: {"model": SessionInfo, "description": "The session with this id, as it is"},
            **described(
                ConflictError,
                *START_ERRORS,
                InvalidInputError,
                QuotaExceededError,
                ServiceStoppingError,
                StorageError,
            ),
        },
    )
    async def open_session(request: Request, wanted: SessionRequest) -> Response:
        """Open a session and wait until its kernel is ready and set up.

        With an `id` it is idempotent: the same body gives the same session (200), another body is
        a conflict. Without one, a client that goes away meanwhile leaves nothing behind.
        """
        if wanted.id is None:
            session = await until_gone(request.receive, lambda: coordinator.open(wanted))
            if session is None:
                return Gone()
            return reply(await session.info(), 201)
        known = coordinator.knows(wanted.id)
        session = await coordinator.open(wanted)
        return reply(await session.info(), 200 if known else 201)

    @router.get(
        "/sessions",
        response_model=SessionList,
        summary="List the open sessions",
    )
    async def list_sessions() -> Response:
        """The open sessions, oldest first."""
        return reply(SessionList(sessions=tuple([await s.info() for s in coordinator.list()])))

    @router.get(
        "/sessions/{sid}",
        response_model=SessionInfo,
        summary="See a session",
        responses=described(SessionNotFoundError),
    )
    async def show_session(sid: str) -> Response:
        """The session as it is now."""
        return reply(await coordinator.get(sid).info())

    @router.delete(
        "/sessions/{sid}",
        status_code=204,
        response_class=Response,
        summary="Close a session",
        responses=described(SessionNotFoundError),
    )
    async def close_session(sid: str) -> Response:
        """End its calls, its processes and its workspace; returns when nothing is left."""
        await coordinator.close(sid)
        return Response(status_code=204)

    @router.post(
        "/sessions/{sid}/interrupt",
        response_model=InterruptResult,
        summary="Interrupt the running cell",
        responses=described(SessionNotFoundError, InvalidInputError),
    )
    async def interrupt(sid: str, how: InterruptRequest | None = None) -> Response:
        """Interrupt the running cell; queued ones stay. Answers within a second."""
        session = coordinator.get(sid)
        return reply(await session.interrupt(force=how is not None and how.force))

    control_errors = described(
        SessionNotFoundError, SessionClosedError, StorageError, *START_ERRORS
    )

    @router.post(
        "/sessions/{sid}/restart",
        response_model=SessionInfo,
        summary="Restart the kernel",
        responses=control_errors,
    )
    async def restart(sid: str) -> Response:
        """A new kernel with its setup code; the workspace stays, queued calls run on it."""
        session = coordinator.get(sid)
        await session.restart()
        return reply(await session.info())

    @router.post(
        "/sessions/{sid}/reset",
        response_model=SessionInfo,
        summary="Reset the session",
        responses=control_errors,
    )
    async def reset(sid: str) -> Response:
        """A new kernel with its setup code, in a fresh workspace."""
        session = coordinator.get(sid)
        await session.reset()
        return reply(await session.info())

    @router.get(
        "/sessions/{sid}/tools",
        response_model=ToolList,
        summary="List the session's tools",
        responses=described(SessionNotFoundError, InvalidInputError),
    )
    async def tools(
        sid: str,
        format: Annotated[  # noqa: A002 - the parameter's public name
            Literal["mcp"], Query(description="whose shape the list has")
        ] = "mcp",
    ) -> Response:
        """The tools that a call may name, to be given to a model."""
        del format  # one so far
        found = await coordinator.get(sid).tools()
        return reply(
            ToolList(
                tools=tuple(
                    McpTool(name=t.name, description=t.description, inputSchema=t.input_schema)
                    for t in found
                )
            )
        )

    return router
