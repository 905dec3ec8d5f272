"""Routes of input requests: what calls ask and wait for, and the answers."""

# No `from __future__ import annotations` here: FastAPI reads the endpoints' annotations.

from fastapi import APIRouter, Response
from pydantic import BaseModel

from replsvc.coordinator import Coordinator
from replsvc.errors import (
    AlreadyAnsweredError,
    InvalidInputError,
    QuestionNotFoundError,
    SessionNotFoundError,
)
from replsvc.gateways.body import StrictRoute
from replsvc.gateways.problem import described
from replsvc.gateways.sessions import reply
from replsvc.session_values import InputAnswer, InputInfo


class InputList(BaseModel):
    """What waits for an answer, in the order of asking."""

    inputs: tuple[InputInfo, ...]


def input_routes(coordinator: Coordinator) -> APIRouter:
    """The routes, for one coordinator."""
    router = APIRouter(prefix="/sessions/{sid}/inputs", route_class=StrictRoute, tags=["inputs"])

    @router.get(
        "",
        response_model=InputList,
        summary="List what is asked",
        responses=described(SessionNotFoundError),
    )
    async def list_inputs(sid: str) -> Response:
        """What calls with `stdin: true` ask and wait for: `input()`, `getpass()`, debuggers.

        Each was an `input_request` event before it is here.
        """
        return reply(InputList(inputs=coordinator.get(sid).inputs()))

    @router.post(
        "/{input_id}",
        status_code=204,
        response_class=Response,
        summary="Answer what is asked",
        responses=described(
            SessionNotFoundError, QuestionNotFoundError, AlreadyAnsweredError, InvalidInputError
        ),
    )
    async def answer(sid: str, input_id: str, given: InputAnswer) -> Response:
        """Give the code its line, or with null the end of input (`EOFError`).

        The first answer counts, another one is a conflict. Answers are not logged. The call's
        events go on with a `status` whose `input` and `outcome` say how the question ended.
        """
        await coordinator.get(sid).answer(input_id, given.text)
        return Response(status_code=204)

    return router
