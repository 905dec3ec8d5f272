from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from http_service import Running, Start


async def post(http: httpx.AsyncClient, sid: str, code: str, **fields: Any) -> dict[str, Any]:
    response = await http.post(
        f"/v1/sessions/{sid}/calls", json={"input": {"code": code}, **fields}
    )
    assert response.status_code == 200, response.text
    call: dict[str, Any] = response.json()
    return call


async def test_a_call_gives_output_value_and_error_apart(http: httpx.AsyncClient, sid: str) -> None:
    body = {"input": {"code": "print('hi'); 6 * 7", "title": "Multiply"}}
    call = (await http.post(f"/v1/sessions/{sid}/calls", json=body)).json()
    assert call["title"] == "Multiply"
    assert (call["status"], call["is_error"], call["execution_count"]) == ("ok", False, 1)
    assert call["content"] == [{"type": "text", "text": "hi\n=> 42"}]
    assert call["output"]["text"] == "hi\n"
    assert call["result"] == {"text/plain": "42"}

    call = await post(http, sid, "print('before'); 1 / 0")
    assert (call["status"], call["is_error"], call["execution_count"]) == ("error", True, 2)
    assert call["error"]["ename"] == "ZeroDivisionError"
    assert call["output"]["text"] == "before\n"


@pytest.mark.parametrize(
    "code",
    [
        "print('a'); 1 + 1",
        "1 / 0",
        "raise ValueError('\\ud800 \\x00 é')",
        "import sys; print('\\udcff', end='')\nsys.stdout.buffer.write(b'\\xff\\n')",
        "'x' * 200_000",
        "import os; print('last words', flush=True); os._exit(3)",
    ],
)
async def test_streamed_and_not_streamed_end_in_the_identical_object(
    service: Running, http: httpx.AsyncClient, sid: str, code: str
) -> None:
    path = f"/v1/sessions/{sid}/calls"
    body = {"input": {"code": code}, "id": "same"}
    async with service.events(path, post=body) as reader:
        seen = [frame async for frame in reader]
    final = seen[-1]["data"]["data"]["call"]

    assert [frame["event"] for frame in seen if frame["event"] != "output"] == [
        "call_started",
        "call_finished",
    ]
    assert {frame["data"]["call_id"] for frame in seen} == {"same"}
    assert (await http.post(path, json=body)).json() == final
    assert (await http.get(f"{path}/same")).json() == final
    async with service.events(path, post=body) as reader:
        assert [frame async for frame in reader] == seen


async def test_output_is_streamed_while_the_cell_runs(
    service: Running, http: httpx.AsyncClient, sid: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = (
        "import os, time\nprint('waiting', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    body = {"input": {"code": code}}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        assert reader.response.status_code == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in reader.response.headers
        output = await reader.until("output")
        assert output["data"]["text"] == "waiting\n"
        assert (await http.get(f"/v1/sessions/{sid}")).json()["state"] == "busy"
        gate.touch()
        assert (await reader.final())["status"] == "ok"


async def test_a_call_stream_resumes_after_the_last_event_that_was_seen(
    service: Running, sid: str
) -> None:
    body = {"input": {"code": "for i in range(3): print(i, flush=True)"}, "id": "c"}
    path = f"/v1/sessions/{sid}/calls"
    async with service.events(path, post=body) as reader:
        seen = [frame async for frame in reader]
    for position, frame in enumerate(seen):
        async with service.events(path, post=body, resume=frame["id"]) as reader:
            assert [rest async for rest in reader] == seen[position + 1 :]


async def test_an_unknown_tool_and_invalid_input_are_calls(
    http: httpx.AsyncClient, sid: str
) -> None:
    path = f"/v1/sessions/{sid}/calls"
    for body, kind in [
        ({"tool": "hammer", "input": {}}, "unknown_tool"),
        ({"input": {"code": 5}}, "invalid_input"),
        ({"input": {}}, "invalid_input"),
        ({"input": {"code": "x" * (1024 * 1024 + 1)}}, "invalid_input"),
    ]:
        response = await http.post(path, json=body)
        call = response.json()
        assert response.status_code == 200
        assert (call["status"], call["cause"]["kind"]) == ("error", kind)
        assert (await http.get(f"{path}/{call['id']}")).json() == call


async def test_a_call_id_belongs_to_one_request(http: httpx.AsyncClient, sid: str) -> None:
    first = await post(http, sid, "n = globals().get('n', 0) + 1; n", id="once")
    assert await post(http, sid, "n = globals().get('n', 0) + 1; n", id="once") == first
    other = await http.post(
        f"/v1/sessions/{sid}/calls", json={"input": {"code": "n"}, "id": "once"}
    )
    assert (other.status_code, other.json()["code"]) == (409, "id_conflict")
    assert (await post(http, sid, "n"))["result"] == {"text/plain": "1"}
    missing = await http.get(f"/v1/sessions/{sid}/calls/never")
    assert (missing.status_code, missing.json()["code"]) == (404, "call_not_found")


async def test_calls_of_a_batch_run_in_order_and_a_failure_stops_none(
    http: httpx.AsyncClient, sid: str
) -> None:
    codes = ["a = 1", "1 / 0", "a + 1"]
    response = await http.post(
        f"/v1/sessions/{sid}/batches", json=[{"input": {"code": code}} for code in codes]
    )
    calls = response.json()["calls"]
    assert [call["status"] for call in calls] == ["ok", "error", "ok"]
    assert calls[2]["result"] == {"text/plain": "2"}
    assert [call["execution_count"] for call in calls] == [1, 2, 3]


async def test_a_batch_that_can_not_go_on_says_what_it_has_done(
    http: httpx.AsyncClient, sid: str
) -> None:
    await post(http, sid, "0", id="taken")
    response = await http.post(
        f"/v1/sessions/{sid}/batches",
        json=[{"input": {"code": "1"}, "id": "first"}, {"input": {"code": "2"}, "id": "taken"}],
    )
    assert (response.status_code, response.json()["code"]) == (409, "id_conflict")
    assert response.json()["ended"] == ["first"]
    empty = await http.post(f"/v1/sessions/{sid}/batches", json=[])
    assert empty.status_code == 422


async def test_a_detached_call_returns_at_once_and_is_fetched_later(
    service: Running, http: httpx.AsyncClient, sid: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n'done'"
    body = {"input": {"code": code}, "detach": True, "id": "d"}
    response = await http.post(f"/v1/sessions/{sid}/calls", json=body)
    assert response.status_code == 202
    assert response.json()["status"] in ("queued", "running")
    gate.touch()
    after = response.json()["seq"]
    async with service.events(f"/v1/sessions/{sid}/events?after={after}&call=d") as reader:
        final = await reader.final("d")
    assert (final["status"], final["result"]) == ("ok", {"text/plain": "'done'"})
    again = await http.post(f"/v1/sessions/{sid}/calls", json=body)
    assert (again.status_code, again.json()) == (200, final)


async def _begin_and_leave(
    service: Running, sid: str, body: dict[str, Any], *, streamed: bool
) -> None:
    """Post a call, wait until its cell has printed, and drop the connection."""
    path = f"/v1/sessions/{sid}/calls"
    if streamed:
        async with service.events(path, post=body) as reader:
            await reader.until("output")
        return
    async with (
        service.events(f"/v1/sessions/{sid}/events") as watching,
        service.client() as leaving,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: leaving.post(path, json=body))
        await watching.until("output")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_nobody_waits_for_any_more_is_interrupted(
    start: Start, streamed: bool
) -> None:
    async with start(limits={"disconnect_grace_s": 0}) as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        code = "kept = 1\nprint('on', flush=True)\nimport time; time.sleep(600)"
        body = {"input": {"code": code}, "id": "left"}
        await _begin_and_leave(service, "s", body, streamed=streamed)
        async with service.events("/v1/sessions/s/events") as reader:
            final = await reader.final("left")
        assert (final["status"], final["state_lost"]) == ("cancelled", False)
        assert final["output"]["text"] == "on\n"
        assert (await post(http, "s", "kept"))["result"] == {"text/plain": "1"}


@pytest.mark.parametrize("option", [{"detach": True}, {"on_disconnect": "continue"}])
async def test_a_call_that_is_to_go_on_survives_its_client(
    start: Start, tmp_path: Path, option: dict[str, Any]
) -> None:
    gate = tmp_path / "gate"
    code = (
        "print('on', flush=True)\nimport os, time\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n'went on'"
    )
    async with start(limits={"disconnect_grace_s": 0}) as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        body = {"input": {"code": code}, "id": "left", **option}
        await _begin_and_leave(service, "s", body, streamed=True)
        await trio.testing.wait_all_tasks_blocked(0.05)  # the service has seen it leave
        gate.touch()
        async with service.events("/v1/sessions/s/events") as reader:
            final = await reader.final("left")
        assert (final["status"], final["result"]) == ("ok", {"text/plain": "'went on'"})


async def test_interrupt_ends_the_running_cell_and_names_survive(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    idle = await http.post(f"/v1/sessions/{sid}/interrupt")
    assert idle.json() == {"delivered": False, "still_running": False}
    body = {"input": {"code": "x = 1\nprint('on', flush=True)\nimport time; time.sleep(600)"}}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        await reader.until("output")
        answer = await http.post(f"/v1/sessions/{sid}/interrupt", json={"force": False})
        assert answer.json() == {"delivered": True, "still_running": False}
        assert (await reader.final())["status"] == "interrupted"
    assert (await post(http, sid, "x"))["result"] == {"text/plain": "1"}


async def test_a_killed_kernel_gives_killed_with_its_output_and_the_next_call_works(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    pid = int((await post(http, sid, "import os; os.getpid()"))["result"]["text/plain"])
    body = {"input": {"code": "print('on', flush=True)\nimport time; time.sleep(600)"}}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        await reader.until("output")
        os.kill(pid, signal.SIGKILL)
        call = await reader.final()
    assert (call["status"], call["state_lost"]) == ("killed", True)
    assert (call["cause"]["kind"], call["cause"]["signal"]) == ("signal", signal.SIGKILL)
    assert call["output"]["text"] == "on\n"
    after = await post(http, sid, "os.getpid() if 'os' in globals() else 'fresh'")
    assert (after["status"], after["result"]) == ("ok", {"text/plain": "'fresh'"})
    assert (await http.get(f"/v1/sessions/{sid}")).json()["generation"] == 2


async def test_a_full_queue_says_which_cell_runs(start: Start) -> None:
    async with start(limits={"queue_limit": 0}) as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        code = "import time; time.sleep(600)"
        body = {"input": {"code": code, "title": "Sleep"}, "id": "long", "detach": True}
        assert (await http.post("/v1/sessions/s/calls", json=body)).status_code == 202
        refused = await http.post("/v1/sessions/s/calls", json={"input": {"code": "1"}})
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (429, "queue_full")
        assert problem["running"] == "long"
        assert problem["title"] == "Queue is full"


async def test_a_calls_log_is_fetched_whole(http: httpx.AsyncClient, sid: str) -> None:
    call = await post(http, sid, "import os\nfor i in range(3000): print(i, 'x' * 1000)\n"
                                 "os.write(1, bytes(range(256)))")  # fmt: skip
    expected = b"".join(b"%d %b\n" % (i, b"x" * 1000) for i in range(3000)) + bytes(range(256))
    assert call["output"]["truncated"]
    name = call["output"]["artifact"]
    response = await http.get(f"/v1/sessions/{sid}/artifacts/{name}")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.content == expected
    assert call["output"]["total_bytes"] == len(expected)
    for other in ("never.log", call["id"], ".log"):
        missing = await http.get(f"/v1/sessions/{sid}/artifacts/{other}")
        assert (missing.status_code, missing.json()["code"]) == (404, "artifact_not_found")
