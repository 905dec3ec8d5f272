"""A service in a process of its own, which a test kills: sessions by name, calls as it is told.

`python survivor.py DATA [REQUEST...]`: opens a session for each REQUEST (JSON), then reads lines
`SESSION CALL CODE-AS-JSON` and submits each; says a line for what it did, and for each output.
"""

from __future__ import annotations

import json
import os
import sys

import trio

from replsvc.calls import CallRequest
from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.session_values import SessionRequest


def config(data: str, grace_s: float = 60) -> Config:
    limits = Limits(interrupt_grace_s=0.5)
    return Config(isolation="best", data=data, survive_grace_s=grace_s, limits=limits)


def say(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


async def follow(service: Coordinator, session_id: str, after: int) -> None:
    async for events in service.log.follow(session_id, after):
        for event in events:
            if event.kind in ("output", "call_finished"):
                say(event.kind, event.call_id)


async def main(data: str, *requests: str) -> None:
    async with Coordinator(config(data)) as service, trio.open_nursery() as nursery:
        for text in requests:
            session = await service.open(SessionRequest.model_validate_json(text))
            nursery.start_soon(follow, service, session.id, 0)
            say("open", session.id, session._slot.current.kernel.info.pid)
        for session in service.list():
            if not requests:
                nursery.start_soon(follow, service, session.id, 0)
        say("ready", *(session.id for session in service.list()))
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            session_id, call_id, code = line.split(" ", 2)
            call = CallRequest(id=call_id, input={"code": json.loads(code)})
            await (await service.get(session_id).submit(call)).started()
            say("submitted", call_id)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
