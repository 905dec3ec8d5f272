"""One call's events on their way to the log.

Those of a quick call go to disk in one commit, with its end: nobody was told of it yet. As soon as
somebody is to know (a detached call, a follower, a call that takes its time or says much) what is
held goes ahead, and everything after it as it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from replsvc.calls import Call, Draft, Event
from replsvc.store.log import EventLog
from replsvc.store.pending import Append

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
        self._first: Append | None = None
        self._unwritten: deque[Append] = deque()
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
        if self._held is None:
            await self._log.room(self._session_id)
        else:  # What is held is little, and no turn of the loop is needed after it.
            await trio.lowlevel.checkpoint_if_cancelled()

    async def started(self) -> int:
        """The number of the call's start, once it is durable. Raises `StorageError`."""
        self.announce()
        if self._seq:
            return self._seq
        assert self._first is not None
        await self._first.settled()
        return self._first.entries[0].seq

    async def settled(self) -> None:
        """Wait until all that was added is durable. Raises `StorageError` when it can't be."""
        self.announce()
        for pending in list(self._unwritten):
            await pending.settled()
        if self._fault is not None:
            raise self._fault

    async def finish(self, call: Call, tell: Callable[[Call], None]) -> None:
        """Write the call's end; `tell` gets the call, with its number, once all of it is durable.

        Raises `StorageError` when any of the call's events could not be written.
        """
        if self._held is not None:
            held, self._held = self._held, []
            first = self._first = self._log.append(self._session_id, (*held, _end(call, 0)))
            # Not when this task has its turn: whoever waits for the call has one at the same time.
            first.then = lambda: tell(call.model_copy(update={"seq": first.entries[0].seq}))
            await first.settled()
            return
        for pending in self._unwritten:
            await pending.settled()
        if self._fault is not None:
            raise self._fault
        numbered = call.model_copy(update={"seq": await self.started()})
        await self._log.append(self._session_id, (_end(numbered),)).settled()
        tell(numbered)


def _end(call: Call, seq_of: int | None = None) -> Draft:
    try:
        text = f'{{"call":{call.model_dump_json()}}}'
    except ValueError:
        # Lone surrogates, which only escapes can say.
        data = {"call": call.model_dump(mode="json")}
        return Draft(kind="call_finished", call_id=call.id, data=data, seq_of=seq_of)
    return Draft(kind="call_finished", call_id=call.id, text=text, seq_of=seq_of)


def _size(draft: Draft) -> int:
    """Bytes of an output, roughly."""
    bundle = draft.data.get("data", {})
    return len(draft.blob or b"") + sum(len(v) for v in bundle.values() if isinstance(v, str))
