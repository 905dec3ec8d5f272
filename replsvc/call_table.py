"""A session's calls by id: those that live, those that ended lately, and the log for the rest."""

from __future__ import annotations

from collections import OrderedDict

from replsvc.calls import Call, CallRequest, utc_now
from replsvc.errors import CallNotFoundError, ConflictError
from replsvc.run import Run, fingerprint
from replsvc.store.log import EventLog

# Ended calls kept at hand; older ones are read from the log.
RECENT_CALLS = 64


class CallTable:
    """See the module."""

    def __init__(self, session_id: str, log: EventLog) -> None:
        self._session_id, self._log = session_id, log
        self._living: dict[str, Run] = {}
        self._recent: OrderedDict[str, Run] = OrderedDict()

    def add(self, run: Run) -> None:
        """A call begins."""
        self._living[run.id] = run

    def ended(self, run: Run) -> None:
        """It has ended; one that the service failed is not remembered."""
        self._living.pop(run.id, None)
        if run.final is not None:
            self._recent[run.id] = run
            while len(self._recent) > RECENT_CALLS:
                self._recent.popitem(last=False)

    def living(self) -> list[Run]:
        """Those that have not ended."""
        return list(self._living.values())

    async def known(self, call_id: str, mark: str) -> Run | None:
        """The call with this id, if its request has this fingerprint; None for a new id.

        Raises `ConflictError` when another request has the id, `StorageError`.
        """
        run = self._at_hand(call_id)
        if run is not None:
            theirs = fingerprint(run.request)
        else:
            event = await self._log.find(self._session_id, call_id, "call_started")
            if event is None:
                # Another task may have begun it while this one looked.
                if self._at_hand(call_id) is not None:
                    return await self.known(call_id, mark)
                return None
            theirs = str(event.data.get("fingerprint"))
        if theirs != mark:
            raise ConflictError(
                f"call {call_id} of session {self._session_id} is another request.",
                hint="Use a new id, or send the same tool, input and options.",
            )
        if run is None:
            run = Run(call_id, self._session_id, CallRequest(), utc_now())
            run.finish(await self.find(call_id))
        return run

    async def find(self, call_id: str) -> Call:
        """The call as it is now. Raises `CallNotFoundError`, `StorageError`."""
        run = self._at_hand(call_id)
        if run is not None:
            if run.final is None:
                await run.started()
            return run.snapshot()
        event = await self._log.find(self._session_id, call_id, "call_finished")
        if event is None:
            raise CallNotFoundError(
                f"session {self._session_id} has no call {call_id}.",
                hint="List its events to see its calls.",
            )
        return Call.model_validate(event.data["call"])

    def _at_hand(self, call_id: str) -> Run | None:
        return self._living.get(call_id) or self._recent.get(call_id)
