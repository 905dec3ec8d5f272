"""`Run`: one call on its way through a session, from the request to its final `Call`."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

import trio

from replsvc.calls import ENDED, Call, CallRequest, Status, Times
from replsvc.cell import CellControl

if TYPE_CHECKING:
    from replsvc.call_log import CallLog
    from replsvc.extension.results import Checked


_current: ContextVar[Run | None] = ContextVar("replsvc_run", default=None)


def current() -> Run | None:
    """The call that whoever asks works for: its cell's code, or its tool's handler."""
    run = _current.get()
    return None if run is None or run.ended else run


def work_for(run: Run) -> None:
    """What this task does from now on, and what it starts, is for `run`."""
    _current.set(run)


def fingerprint(request: CallRequest) -> str:
    """What makes two requests the same one; the id is not part of it."""
    body = request.model_dump(mode="json", exclude={"id"})
    text = json.dumps(body, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Run:
    """Mutable while the call lives; `wait` gives what it became. Only its session changes it."""

    def __init__(
        self,
        id_: str,
        session_id: str,
        request: CallRequest,
        now: datetime,
        parent: Run | None = None,
    ) -> None:
        self.id, self.session_id, self.request = id_, session_id, request
        self.input: dict[str, Any] = request.input
        """What runs: the request's, unless a hook has changed it."""
        self.parent = parent
        """The call, of this session or another, whose code or handler asked for this one."""
        self.title = str(request.input.get("title", ""))[:200]
        self.created_at = now
        self.created = trio.current_time()
        self.started_at: datetime | None = None
        self.execution_started: float | None = None
        self.status: Status = "queued"
        self.waited = False
        self.resumes = False
        """Whether an earlier coordinator had begun with it."""
        self.control = CellControl()
        self.returned: Checked | None = None
        """What a tool that code called returned, whole, until the code has it."""
        self.before: Run | None = None
        """Another of the same group of a batch, which is looked at before this one."""
        self.looked_at = trio.Event()
        self.followers = 0
        self.abandoned = trio.Event()
        self.followed = trio.Event()
        self.log: CallLog | None = None
        self.seq = 0
        self.final: Call | None = None
        self.failure: Exception | None = None
        self._ended = trio.Event()

    @property
    def parent_id(self) -> str | None:
        """The parent's id, if it is of the same session."""
        parent = self.parent
        return parent.id if parent is not None and parent.session_id == self.session_id else None

    @property
    def ended(self) -> bool:
        """Whether `wait` returns at once."""
        return self._ended.is_set()

    async def started(self) -> int:
        """The number of this call's `call_started` event, once it is durable.

        Raises `StorageError` when it could not be written.
        """
        if not self.seq and self.log is not None:
            self.seq = await self.log.started()
        return self.seq

    def snapshot(self) -> Call:
        """The call as it is now."""
        if self.final is not None:
            return self.final
        return Call(
            id=self.id,
            session_id=self.session_id,
            seq=self.seq,
            tool=self.request.tool,
            title=self.title,
            status=self.status,
            parent_call_id=self.parent_id,
            created_at=self.created_at,
            started_at=self.started_at,
            times=Times(),
        )

    def finish(self, call: Call) -> None:
        """The call has ended, and that is durable."""
        assert call.status in ENDED
        self.status, self.final = call.status, call
        self.looked_at.set()
        self._ended.set()

    def fail(self, error: Exception) -> None:
        """The service failed this call: whoever waits gets the exception."""
        self.failure = error
        self.looked_at.set()
        self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the call has ended, whatever it became."""
        await self._ended.wait()

    async def wait(self) -> Call:
        """The final call. Raises what made the service fail it; cancelling stops waiting only."""
        await self._ended.wait()
        if self.final is None:
            assert self.failure is not None
            raise self.failure
        return self.final


class Turns:
    """Who has the kernel: strictly in the order of joining, one at a time."""

    def __init__(self) -> None:
        self._line: deque[Run] = deque()
        self._changed = trio.Event()

    def __len__(self) -> int:
        """How many wait, the one whose turn it is not counted."""
        return max(0, len(self._line) - 1)

    @property
    def holder(self) -> Run | None:
        """Whose turn it is."""
        return self._line[0] if self._line else None

    def join(self, run: Run) -> None:
        """Stand in line."""
        self._line.append(run)

    def leave(self, run: Run) -> None:
        """Leave, from wherever in the line."""
        if run in self._line:
            self._line.remove(run)
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def wait(self, run: Run) -> None:
        """Wait until it is this run's turn."""
        while self._line[0] is not run:
            await self._changed.wait()
        await trio.lowlevel.checkpoint_if_cancelled()

    def waiting(self) -> list[Run]:
        """Those who wait, in their order."""
        return list(self._line)[1:]
