"""What one call's cell asks for, and who answers: whoever follows the call, or a text of lines.

Answers are never logged: they may be passwords, and what becomes of them is the code's affair.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import trio

from replsvc.calls import Draft, utc_now
from replsvc.config import Limits
from replsvc.errors import ReplsvcError
from replsvc.interaction import Interaction, Question, new_id
from replsvc.redaction import Redactor
from replsvc.run import Run
from replsvc.session_values import InputInfo
from replsvc.talk import Answer, Ask, Clock
from replsvc_kernels.messages import InputRequest

MAX_REQUESTS = 4_000
"""What one call may ask, so that a cell can't fill the log with questions."""
CENTURY_S = 100 * 365 * 86_400
"""From here on no date is said: calendars end."""


def asks_of(run: Run, interaction: Interaction, limits: Limits, redactor: Redactor) -> Ask | None:
    """Who answers what the call's cell asks; None where nobody does."""
    given = run.request.stdin
    if isinstance(given, str):
        return _from_text(given)
    return _Attached(run, interaction, limits, redactor).ask if given else None


def _from_text(text: str) -> Ask:
    """One line after the other, as from a file; then the end of input."""
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    rest = iter(lines)

    async def ask(_request: InputRequest, _clock: Clock) -> Answer:
        line = next(rest, None)
        return Answer(line, "the call's stdin has no more lines" if line is None else "")

    return ask


_Question = Question[InputInfo, str | None]


class _Attached:
    """Asks by an event, and waits for the answer while the call's clock stands still."""

    def __init__(
        self, run: Run, interaction: Interaction, limits: Limits, redactor: Redactor
    ) -> None:
        self._run, self._interaction = run, interaction
        self._limits, self._redactor = limits, redactor
        assert run.log is not None
        self._log = run.log
        self._asked = 0

    async def ask(self, request: InputRequest, clock: Clock) -> Answer:
        """See `talk.Ask`."""
        most = self._limits.max_wait_s
        left = math.inf if most is None else most - clock.waited_s
        expired = Answer(None, f"nobody answered within {most} s (max_wait_s), all waits together")
        self._asked += 1
        if self._asked > MAX_REQUESTS:
            return Answer(None, f"a call can ask for input {MAX_REQUESTS} times at most")
        if left <= 0:
            return expired
        # A kernel that asks again before anybody could answer has cancelled this by now; and one
        # that asks faster than the log takes it waits.
        await trio.lowlevel.checkpoint()
        await self._log.room()
        question = self._question(request, left)
        try:
            with self._interaction.asking(question), clock.paused():
                self._tell(question)
                await self._log.settled()
                question.told = True
                outcome = await question.wait(left)
        except ReplsvcError:
            # What is not on disk nobody was told of. The call's end says what happened.
            return Answer(None, "the question could not be logged")
        finally:
            self._go_on(question)
        return Answer(question.answer) if outcome == "answered" else expired

    def _question(self, request: InputRequest, left: float) -> _Question:
        now = utc_now()
        info = InputInfo(
            id=new_id("input"),
            call_id=self._run.id,
            prompt=self._redactor.text(request.prompt),
            password=request.password,
            asked_at=now,
            expires_at=None if left > CENTURY_S else now + timedelta(seconds=left),
        )
        return Question("input", info.id, info)

    def _tell(self, question: _Question) -> None:
        self._run.status = "waiting"
        data = question.value.model_dump(mode="json", exclude={"call_id", "asked_at"})
        self._log.add(Draft(kind="input_request", call_id=self._run.id, data=data))
        self._status({"status": "waiting"})
        self._log.announce()

    def _go_on(self, question: _Question) -> None:
        self._run.status = "running"
        self._status({"status": "running", "input": question.id, "outcome": question.outcome})

    def _status(self, data: dict[str, Any]) -> None:
        self._log.add(Draft(kind="status", call_id=self._run.id, data=data))
