"""Batches: calls in groups, so that what may run together does (extensions.md rule 18)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import trio

from replsvc.calls import Batch, Call, CallRequest
from replsvc.errors import ReplsvcError
from replsvc.run import Run


class Submits(Protocol):
    """What a batch needs of its session."""

    async def submit(self, request: CallRequest, *, after: Run | None = None) -> Run:
        """Begin a call, which is looked at after another one has been."""

    def is_sequential(self, tool: str) -> bool:
        """Whether calls of this tool are barriers."""


def groups(
    requests: Sequence[CallRequest], is_sequential: Callable[[str], bool]
) -> list[list[CallRequest]]:
    """Neighbours that may run together; a sequential call is alone: `A B [S] C` is AB, S, C."""
    found: list[list[CallRequest]] = []
    open_ = False
    for request in requests:
        barrier = is_sequential(request.tool)
        if barrier or not open_:
            found.append([])
        found[-1].append(request)
        open_ = not barrier
    return found


async def run_batch(
    session: Submits,
    requests: Sequence[CallRequest],
    wait: Callable[[Run], Awaitable[Call]],
) -> Batch:
    """Run `requests` group by group; each group has ended before the next is looked at.

    Errors stop nothing; after a cancelled call those that were not begun are cancelled too. `wait`
    waits for one call. Raises what `submit` and `wait` raise, once all that was begun has ended;
    the error's details have the ids of what has, under `ended`.
    """
    calls: list[Call] = []
    cancelled = False
    for group in groups(requests, session.is_sequential):
        runs: list[Run] = []
        refused: ReplsvcError | None = None
        for request in group:
            try:
                run = await session.submit(request, after=runs[-1] if runs else None)
            except ReplsvcError as error:
                refused = error
                break
            runs.append(run)
            if cancelled:
                run.control.cancel()
        ended, failed = await _all(runs, wait)
        calls += ended
        if (fault := refused or failed) is not None:
            fault.details["ended"] = [call.id for call in calls]
            raise fault
        cancelled = cancelled or any(call.status == "cancelled" for call in ended)
    return Batch(calls=tuple(calls), terminate=bool(calls) and all(c.terminate for c in calls))


async def _all(
    runs: Sequence[Run], wait: Callable[[Run], Awaitable[Call]]
) -> tuple[list[Call], ReplsvcError | None]:
    """What the calls became, in their order; and the first fault."""
    ended: dict[int, Call] = {}
    faults: list[ReplsvcError] = []

    async def one(place: int, run: Run) -> None:
        try:
            ended[place] = await wait(run)
        except ReplsvcError as error:
            faults.append(error)

    async with trio.open_nursery() as nursery:
        for place, run in enumerate(runs):
            nursery.start_soon(one, place, run)
    return [ended[place] for place in sorted(ended)], faults[0] if faults else None
