"""Questions: told when they are durable, answered once, remembered when they are over."""

from __future__ import annotations

import pytest
import trio

from replsvc import interaction
from replsvc.errors import AlreadyAnsweredError, ConflictError, QuestionNotFoundError
from replsvc.interaction import Interaction, Question, new_id


def ask(kind: interaction.Kind = "input") -> Question[str, str]:
    return Question(kind, new_id(kind), "what?")


async def test_a_question_is_answered_by_whoever_comes_first() -> None:
    session, question = Interaction("s"), ask()
    with session.asking(question):
        session.answer("input", question.id, "first")
        with pytest.raises(ConflictError, match="was answered already"):
            session.answer("input", question.id, "second")
        assert await question.wait(60) == "answered"
    assert question.answer == "first"


async def test_only_what_was_told_and_waits_is_listed() -> None:
    session, first, second, other = Interaction("s"), ask(), ask(), ask("approval")
    with session.asking(first), session.asking(second), session.asking(other):
        assert session.pending("input") == []
        for question in (first, second, other):
            question.told = True
        assert session.pending("input") == [first, second]
        session.answer("input", first.id, "x")
        assert session.pending("input") == [second]
    assert session.pending("input") == []


async def test_a_question_that_is_left_is_withdrawn() -> None:
    session, question = Interaction("s"), ask()
    with session.asking(question):
        pass
    assert question.outcome == "withdrawn"
    with pytest.raises(AlreadyAnsweredError, match="not waited for any more"):
        session.answer("input", question.id, "x")


async def test_a_question_expires_and_stays_so(autojump_clock: trio.testing.MockClock) -> None:
    session, question = Interaction("s"), ask()
    with session.asking(question):
        assert await question.wait(5) == "expired"
        assert trio.current_time() == pytest.approx(5)
        with pytest.raises(AlreadyAnsweredError, match="not answered in time"):
            session.answer("input", question.id, "late")
    assert question.outcome == "expired"


async def test_an_answer_belongs_to_its_kind() -> None:
    session, question = Interaction("s"), ask("approval")
    with session.asking(question):
        with pytest.raises(QuestionNotFoundError, match="no input request"):
            session.answer("input", question.id, "x")
        session.answer("approval", question.id, "yes")
    assert question.answer == "yes"


async def test_what_is_over_is_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction, "REMEMBERED", 2)
    session, questions = Interaction("s"), [ask() for _ in range(3)]
    for question in questions:
        with session.asking(question):
            pass
    with pytest.raises(QuestionNotFoundError):
        session.answer("input", questions[0].id, "x")
    with pytest.raises(AlreadyAnsweredError):
        session.answer("input", questions[1].id, "x")
