"""One call's events on their way to the log.

Those of a quick call go to disk in one commit, with its end: nobody was told of it yet. As soon as
somebody is to know (a detached call, a follower, a call that takes its time or says much) what is
held goes ahead, and everything after it as it comes.
"""

from __future__ import annotations

from collections import deque

from replsvc.calls import Call, Draft, Event
from replsvc.store.log import EventLog
from replsvc.store.pending import Pending

HELD_EVENTS = 16
HELD_BYTES = 64 * 1024


class CallLog:
    """See the module. `start` is the call's `call_started` event.

    An event that could not be written is not lost silently: the call gets no more of them, goes on,
    and `finish` raises what happened.
    """

    def __init__(self, log: EventLog, session_id: str, start: Draft) -> None:
        self._log, self._session_id = log, session_id
        self._held: list[Draft] | None = [start]
        self._held_bytes = 0
        self._first: Pending[tuple[Event, ...]] | None = None
        self._unwritten: deque[Pending[tuple[Event, ...]]] = deque()
        self._fault: Exception | None = None
        self._seq = 0

    def add(self, draft: Draft) -> None:
        """Hand over an event."""
        if self._held is not None:
            self._held.append(draft)
            self._held_bytes += _size(draft)
            if self._held_bytes > HELD_BYTES or len(self._held) > HELD_EVENTS:
                self.announce()
            return
        while self._unwritten and self._unwritten[0].batch.settled.is_set():
            error = self._unwritten.popleft().error
            self._fault = self._fault or error
        if self._fault is None:
            self._unwritten.append(self._log.append(self._session_id, (draft,)))

    def announce(self) -> None:
        """Let what is held go ahead: from now on somebody may be told of this call."""
        if self._held is not None:
            held, self._held = self._held, None
            self._first = self._log.append(self._session_id, held)
            self._unwritten.append(self._first)

    @classmethod
    def again(cls, log: EventLog, session_id: str, start: Event) -> CallLog:
        """Of a call whose start was written by an earlier coordinator."""
        again = cls(log, session_id, Draft(kind="call_started", call_id=start.call_id))
        again._held, again._seq = None, start.seq
        return again

    async def room(self) -> None:
        """Wait until the log takes more."""
        await self._log.room(self._session_id)

    async def started(self) -> int:
        """The number of the call's start, once it is durable. Raises `StorageError`."""
        self.announce()
        if self._seq:
            return self._seq
        assert self._first is not None
        return (await self._first.wait())[0].seq

    async def settled(self) -> None:
        """Wait until all that was added is durable. Raises `StorageError` when it can't be."""
        self.announce()
        for pending in list(self._unwritten):
            await pending.wait()
        if self._fault is not None:
            raise self._fault

    async def finish(self, call: Call) -> Call:
        """Write the call's end; returns the call, with its number, once all of it is durable.

        Raises `StorageError` when any of the call's events could not be written.
        """
        data = {"call": call.model_dump(mode="json")}
        if self._held is not None:
            held, self._held = self._held, []
            end = Draft(kind="call_finished", call_id=call.id, data=data, seq_of=0)
            self._first = self._log.append(self._session_id, (*held, end))
            seq = (await self._first.wait())[0].seq
            return call.model_copy(update={"seq": seq})
        for pending in self._unwritten:
            await pending.wait()
        if self._fault is not None:
            raise self._fault
        data["call"]["seq"] = seq = await self.started()
        end = Draft(kind="call_finished", call_id=call.id, data=data)
        await self._log.append(self._session_id, (end,)).wait()
        return call.model_copy(update={"seq": seq})


def _size(draft: Draft) -> int:
    """Bytes of an output, roughly."""
    bundle = draft.data.get("data", {})
    return len(draft.blob or b"") + sum(len(v) for v in bundle.values() if isinstance(v, str))
