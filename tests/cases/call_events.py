"""What the event log of a session holds of one call."""

from __future__ import annotations

from replsvc.calls import Call, Event
from replsvc.session import Session


async def outputs(session: Session, call: Call) -> list[Event]:
    """The call's output events, in their order."""
    events: list[Event] = []
    while page := await session.log.read(
        session.id, events[-1].seq if events else 0, call_id=call.id, kinds=["output"]
    ):
        events += page
    return events


async def logged(session: Session, call: Call, name: str | None = None) -> bytes:
    """The bytes that the log keeps, of one stream or of both."""
    return b"".join(
        event.blob
        for event in await outputs(session, call)
        if event.blob is not None and name in (None, event.data["name"])
    )


async def wait_for_background(session: Session, call: Call) -> bytes:
    """The first bytes that came after the call's end."""
    async for events in session.log.follow(session.id, call_id=call.id):
        for event in events:
            if event.data.get("background"):
                assert event.blob is not None
                return event.blob
    raise AssertionError
