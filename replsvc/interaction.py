"""What waits for somebody's answer: pending, told only once it is durable, answered once.

Cells ask for input this way; approvals and dialogs can. Nothing here knows what a question is about
or what an answer may be: `value` is the question as others see it, and whoever asks says what type
the answer has.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

import trio

from replsvc.errors import AlreadyAnsweredError, QuestionNotFoundError

Kind = Literal["approval", "dialog", "input"]
Outcome = Literal["answered", "expired", "withdrawn"]

V = TypeVar("V")
A = TypeVar("A")

# Ids of questions that are over, kept to tell them from those that never were.
REMEMBERED = 1_000
_OVER: dict[Outcome, str] = {
    "answered": "was answered already",
    "expired": "was not answered in time",
    "withdrawn": "is not waited for any more",
}


def new_id(kind: Kind) -> str:
    """An id that nobody guesses before it is told."""
    return f"{kind}_{secrets.token_urlsafe(9)}"


class Question(Generic[V, A]):
    """One question. `outcome` is None while it waits; after "answered" `answer` is the answer."""

    answer: A

    def __init__(self, kind: Kind, id_: str, value: V) -> None:
        self.kind, self.id, self.value = kind, id_, value
        self.outcome: Outcome | None = None
        self.told = False
        self._over = trio.Event()

    def settle(self, outcome: Outcome) -> None:
        """It is over; the first outcome counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._over.set()

    async def wait(self, timeout_s: float) -> Outcome:
        """Wait until it is answered or withdrawn, at most so long; then it has expired."""
        with trio.move_on_after(timeout_s):
            await self._over.wait()
        self.settle("expired")
        assert self.outcome is not None
        return self.outcome


class Interaction:
    """The questions of one session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._open: dict[str, Question[Any, Any]] = {}
        self._over: OrderedDict[str, Question[Any, Any]] = OrderedDict()

    @contextmanager
    def asking(self, question: Question[Any, Any]) -> Iterator[None]:
        """Let `question` be answered inside; on leaving it is withdrawn, if nothing else came.

        It is listed once `told` is set, which is for whoever asks to do when the log has it.
        """
        self._open[question.id] = question
        try:
            yield
        finally:
            question.settle("withdrawn")
            del self._open[question.id]
            self._over[question.id] = question
            while len(self._over) > REMEMBERED:
                self._over.popitem(last=False)

    def pending(self, kind: Kind) -> list[Question[Any, Any]]:
        """The questions of one kind that can be answered now, in the order of asking."""
        return [
            question
            for question in self._open.values()
            if question.kind == kind and question.told and question.outcome is None
        ]

    def answer(self, kind: Kind, id_: str, answer: object) -> None:
        """Answer a question. Of two answers at the same instant one wins.

        Raises `AlreadyAnsweredError` for one that is over, however it ended, and
        `QuestionNotFoundError`.
        """
        question = self._open.get(id_) or self._over.get(id_)
        if question is None or question.kind != kind:
            raise QuestionNotFoundError(
                f"session {self._session_id} has no {kind} request {id_}.",
                hint=f"GET /v1/sessions/{self._session_id}/{kind}s lists those that wait.",
            )
        if question.outcome is not None:
            raise AlreadyAnsweredError(
                f"{kind} request {id_} {_OVER[question.outcome]}.",
                hint="The first answer counts; follow the call's events for what came of it.",
            )
        question.answer = answer
        question.settle("answered")
