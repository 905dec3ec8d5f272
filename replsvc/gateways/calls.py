"""Routes of calls: begin, follow, fetch; and the events of a session."""

# No `from __future__ import annotations` here: FastAPI reads the endpoints' annotations.

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import FileResponse

from replsvc.calls import Batch, Call, CallRequest
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    ArtifactNotFoundError,
    CallNotFoundError,
    ConflictError,
    InvalidInputError,
    QueueFullError,
    ServiceStoppingError,
    SessionClosedError,
    SessionNotFoundError,
    StorageError,
)
from replsvc.gateways.body import StrictRoute
from replsvc.gateways.problem import described
from replsvc.gateways.sessions import reply
from replsvc.gateways.stream import (
    ByteStream,
    CallEvents,
    EventStream,
    Gone,
    SessionEvents,
    until_gone,
)
from replsvc.run import Run
from replsvc.session import Session

EVENT_STREAM = "text/event-stream"
LOG_SUFFIX = ".log"
MAX_BATCH = 256
# Event numbers are exact in every client's language up to here.
MAX_SEQ = 2**53 - 1

LastEventId = Annotated[
    int | None,
    Header(ge=0, le=MAX_SEQ, description="go on after this event; stronger than `after`"),
]
SUBMIT_ERRORS = (
    SessionNotFoundError,
    ConflictError,
    SessionClosedError,
    InvalidInputError,
    QueueFullError,
    ServiceStoppingError,
    StorageError,
)
_STREAM_CONTENT = {
    EVENT_STREAM: {
        "schema": {"type": "string"},
        "example": 'id: 7\nevent: output\ndata: {"seq":7,"kind":"output",...}\n\n',
    }
}

_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


def call_routes(coordinator: Coordinator) -> APIRouter:
    """The routes, for one coordinator."""
    router = APIRouter(prefix="/sessions/{sid}", route_class=StrictRoute, tags=["calls"])

    @router.post(
        "/calls",
        response_model=Call,
        summary="Use a tool",
        responses={
            200: {"description": "The call, ended; or its events", "content": _STREAM_CONTENT},
            202: {"model": Call, "description": "The detached call, queued or running"},
            **described(*SUBMIT_ERRORS),
        },
    )
    async def call(
        sid: str,
        request: Request,
        wanted: CallRequest,
        accept: Annotated[str, Header()] = "",
        last_event_id: LastEventId = None,
    ) -> Response:
        """Begin a call and wait for its end; with `detach`, return at once.

        Failing code, limits, a dead kernel, an unknown tool and invalid input for a tool are calls
        like any other: 200, and its `status` and `cause` say what happened. With
        `Accept: text/event-stream` the call's events come as they happen; the last one,
        `call_finished`, has the same object that is returned without. The same `id` with the same
        request is the same call, which is how a client that lost its connection comes back.
        """
        session = coordinator.get(sid)
        run = await session.submit(wanted)
        if EVENT_STREAM in accept:
            began = run.final.seq if run.final is not None else await run.started()
            events = CallEvents(session, run, max(began - 1, last_event_id or 0))
            return EventStream(events, hold=session.following(run))
        if wanted.detach and not run.ended:
            await run.started()
            return reply(run.snapshot(), 202)
        ended = await _result(session, run, request)
        return Gone() if ended is None else reply(ended)

    @router.post(
        "/batches",
        response_model=Batch,
        summary="Use several tools",
        responses=described(*SUBMIT_ERRORS),
    )
    async def batch(
        sid: str,
        request: Request,
        wanted: Annotated[list[CallRequest], Body(min_length=1, max_length=MAX_BATCH)],
    ) -> Response:
        """Run the calls; results come in the calls' order, whatever each became.

        Neighbours run at once. One of a sequential tool, as `repl` is, waits until those before it
        have ended, and those after it wait for it. When one can't be begun, the problem's `ended`
        has the ids of those that ended before.
        """
        session = coordinator.get(sid)
        batch = await until_gone(request.receive, lambda: session.batch(wanted, attached=True))
        return Gone() if batch is None else reply(batch)

    @router.get(
        "/calls/{cid}",
        response_model=Call,
        summary="See a call",
        responses=described(SessionNotFoundError, CallNotFoundError, StorageError),
    )
    async def show_call(sid: str, cid: str) -> Response:
        """The call as it is now; when it has ended, its result."""
        return reply(await coordinator.get(sid).find(cid))

    @router.get(
        "/events",
        response_class=Response,
        summary="Follow a session",
        responses={
            200: {"description": "The events as they happen", "content": _STREAM_CONTENT},
            **described(SessionNotFoundError, InvalidInputError),
        },
    )
    async def events(
        sid: str,
        after: Annotated[int, Query(ge=0, le=MAX_SEQ, description="go on after this event")] = 0,
        call: Annotated[str | None, Query(description="only this call's events")] = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """The session's events, `{seq, kind, call_id, at, data}`, until it is closed.

        `seq` starts at 1 and never skips or repeats, so following after any number gives exactly
        the rest. A comment comes every 15 s when nothing else does.
        """
        session = coordinator.get(sid)
        begin = after if last_event_id is None else last_event_id
        return EventStream(SessionEvents(session, begin, call))

    @router.get(
        "/artifacts/{artifact}",
        response_class=Response,
        summary="Fetch an artefact",
        responses={
            200: {"description": "Its bytes", "content": {"*/*": _BYTES}},
            206: {"description": "The range that was asked for", "content": {"*/*": _BYTES}},
            **described(SessionNotFoundError, ArtifactNotFoundError, StorageError),
        },
    )
    async def artifact(sid: str, artifact: str) -> Response:
        """`CALL.N` is a file that the call's cell made, as it was at the cell's end; with ranges.

        `CALL.log` is all that the call has printed so far, stdout and stderr as they came. Both
        outlive the session.
        """
        if artifact.endswith(LOG_SUFFIX):
            call = await _logged(coordinator, sid, artifact)
            return ByteStream(coordinator.log.output_bytes(sid, call.id), call.id + LOG_SUFFIX)
        found, path = await coordinator.artifact(sid, artifact)
        name = found.path.rpartition("/")[2]
        # Hostile content: whatever it says it is, a browser saves it.
        return FileResponse(
            path,
            media_type=found.mime_type,
            filename=name,
        )

    return router


async def _result(session: Session, run: Run, request: Request) -> Call | None:
    """What the call becomes; None when the client goes away first."""
    async with session.following(run):
        return await until_gone(request.receive, run.wait)


async def _logged(coordinator: Coordinator, session_id: str, artifact: str) -> Call:
    """The call whose log this is."""
    try:
        return await coordinator.find_call(session_id, artifact.removesuffix(LOG_SUFFIX))
    except CallNotFoundError:
        raise ArtifactNotFoundError(
            f"session {session_id} has no artefact {artifact}.",
            hint="A call's output.artifact names its log.",
        ) from None
