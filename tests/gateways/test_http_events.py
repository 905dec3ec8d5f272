from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from http_service import EventReader, Running, Start

from replsvc.gateways import stream


async def run(http: httpx.AsyncClient, sid: str, code: str, **fields: Any) -> dict[str, Any]:
    response = await http.post(
        f"/v1/sessions/{sid}/calls", json={"input": {"code": code}, **fields}
    )
    call: dict[str, Any] = response.json()
    return call


async def take_until_end_of(reader: EventReader, call_id: str) -> list[dict[str, Any]]:
    seen = []
    async for frame in reader:
        seen.append(frame)
        if frame["event"] == "call_finished" and frame["data"]["call_id"] == call_id:
            return seen
    raise AssertionError("the stream has ended before the call")


async def test_resuming_at_every_event_gives_exactly_the_rest(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    path = f"/v1/sessions/{sid}/events"
    await run(http, sid, "for i in range(5): print(i, flush=True)")
    await run(http, sid, "1 / 0")
    await run(http, sid, "'last'", id="last")
    async with service.events(path) as reader:
        everything = await take_until_end_of(reader, "last")
    numbers = [frame["data"]["seq"] for frame in everything]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [int(frame["id"]) for frame in everything] == numbers
    assert [frame["data"]["kind"] for frame in everything] == [f["event"] for f in everything]

    for position, seq in enumerate(numbers[:-1]):
        rest = everything[position + 1 :]
        async with service.events(path, resume=seq) as reader:
            assert await take_until_end_of(reader, "last") == rest
        async with service.events(f"{path}?after={seq}") as reader:
            assert await take_until_end_of(reader, "last") == rest
    # A browser that reconnects repeats the URL, and says in the header what it has seen.
    async with service.events(f"{path}?after=0", resume=numbers[-2]) as reader:
        assert await take_until_end_of(reader, "last") == everything[-1:]


async def test_following_one_call_gives_only_its_events(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    await run(http, sid, "print('other')")
    mine = await run(http, sid, "print('mine')")
    await run(http, sid, "print('another')")
    async with service.events(f"/v1/sessions/{sid}/events?call={mine['id']}") as reader:
        seen = await take_until_end_of(reader, mine["id"])
    assert [frame["event"] for frame in seen] == ["call_started", "output", "call_finished"]
    assert {frame["data"]["call_id"] for frame in seen} == {mine["id"]}
    assert seen[0]["data"]["seq"] == mine["seq"]
    assert seen[1]["data"]["data"] == {"type": "stream", "name": "stdout", "text": "mine\n"}


async def test_bytes_that_are_no_text_are_shown_as_escapes(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    await run(http, sid, "import os; os.write(1, 'é'.encode() + b'\\xff\\x00')", id="c")
    async with service.events(f"/v1/sessions/{sid}/events?call=c") as reader:
        text = ""
        for frame in await take_until_end_of(reader, "c"):
            text += frame["data"]["data"].get("text", "")
    assert text == "é\\xff\0"


async def test_a_stream_ends_with_its_session_after_the_last_event(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    async with service.events(f"/v1/sessions/{sid}/events") as reader:
        code = "print('on', flush=True)\nimport time; time.sleep(600)"
        body = {"input": {"code": code}, "detach": True}
        await http.post(f"/v1/sessions/{sid}/calls", json=body)
        await reader.until("output")
        assert (await http.delete(f"/v1/sessions/{sid}")).status_code == 204
        call = await reader.final()
        assert (call["status"], call["cause"]["kind"]) == ("killed", "service_stop")
        assert {frame["event"] async for frame in reader} <= {"kernel_died", "session_changed"}
    gone = await http.get(f"/v1/sessions/{sid}/events")
    assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found")


async def test_a_quiet_stream_has_heartbeats(
    monkeypatch: pytest.MonkeyPatch, service: Running, sid: str
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.01)
    async with service.events(f"/v1/sessions/{sid}/events", resume=1) as reader:
        received = b""
        while received.count(b": alive\n\n") < 2:
            received += await reader.stream.receive_some(4096)


@pytest.mark.parametrize(
    ("query", "header"),
    [("?after=-1", None), ("?after=x", None), (f"?after={2**53}", None), ("", "x"), ("", "-1")],
)
async def test_a_position_that_is_none_is_refused(
    http: httpx.AsyncClient, sid: str, query: str, header: str | None
) -> None:
    headers = {} if header is None else {"Last-Event-ID": header}
    response = await http.get(f"/v1/sessions/{sid}/events{query}", headers=headers)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")


async def test_a_client_that_does_not_read_holds_nobody_up_and_misses_nothing(
    start: Start,
) -> None:
    async with start() as service, service.client() as http:
        for name in ("slow", "other"):
            await http.post("/v1/sessions", json={"id": name})
        async with service.events("/v1/sessions/slow/events") as reader:
            # More than all buffers between here and there can hold.
            big = await run(http, "slow", "for i in range(40_000): print(i, 'x' * 1000)", id="big")
            assert big["status"] == "ok"
            assert (await run(http, "other", "1"))["status"] == "ok"

            seen = await take_until_end_of(reader, "big")
            assert [int(frame["id"]) for frame in seen] == list(range(1, len(seen) + 1))
            text = "".join(frame["data"]["data"].get("text", "") for frame in seen)
            assert text == "".join(f"{i} {'x' * 1000}\n" for i in range(40_000))


async def test_a_call_that_the_service_fails_ends_its_stream_with_the_problem(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    session = service.coordinator.get(sid)
    code = "print('on', flush=True)\nimport time; time.sleep(600)"
    body = {"input": {"code": code}, "id": "c"}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        await reader.until("output")
        session.scope.cancel()  # as a crash of the session would
        frames = [frame async for frame in reader]
    assert [frame["event"] for frame in frames] == ["problem"]
    assert frames[0]["data"]["code"] == "session_closed"
    assert "id" not in frames[0]
    with trio.fail_after(30):
        await session.closed.wait()
