from __future__ import annotations

from pathlib import Path

import httpx
import trio
import trio.testing
from http_service import Running, Start


async def test_a_session_is_opened_listed_shown_and_closed(http: httpx.AsyncClient) -> None:
    opened = await http.post("/v1/sessions", json={"name": "notes", "limits": {"timeout_s": 5}})
    assert opened.status_code == 201
    session = opened.json()
    assert (session["name"], session["state"], session["generation"]) == ("notes", "idle", 1)
    assert session["isolation"] == "none"
    assert session["limits"]["timeout_s"] == 5
    path = f"/v1/sessions/{session['id']}"

    assert (await http.get("/v1/sessions")).json()["sessions"] == [session]
    assert (await http.get(path)).json() == session

    closed = await http.delete(path)
    assert (closed.status_code, closed.content) == (204, b"")
    assert (await http.get("/v1/sessions")).json() == {"sessions": []}
    gone = await http.get(path)
    assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found")
    assert (await http.delete(path)).status_code == 404


async def test_the_same_creation_again_gives_the_same_session(http: httpx.AsyncClient) -> None:
    body = {"id": "mine", "env": {"A": "1"}}
    first = await http.post("/v1/sessions", json=body)
    again = await http.post("/v1/sessions", json=body)
    other = await http.post("/v1/sessions", json={"id": "mine", "env": {"A": "2"}})

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert (other.status_code, other.json()["code"]) == (409, "id_conflict")


async def test_twenty_parallel_creations_of_one_id_give_one_kernel(
    service: Running, http: httpx.AsyncClient
) -> None:
    statuses: list[int] = []

    async def create() -> None:
        async with service.client() as client:
            response = await client.post("/v1/sessions", json={"id": "one"})
            statuses.append(response.status_code)
            assert response.json()["generation"] == 1

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(create)

    assert sorted(statuses) == [200] * 19 + [201]
    assert len((await http.get("/v1/sessions")).json()["sessions"]) == 1
    async with service.events("/v1/sessions/one/events") as reader:
        await http.post("/v1/sessions/one/calls", json={"input": {"code": "1"}})
        # Were there a second kernel, its start would stand before the call's.
        assert (await anext(reader))["event"] == "kernel_started"
        assert (await anext(reader))["event"] == "call_started"


async def test_restart_loses_names_and_keeps_files_and_reset_loses_both(
    http: httpx.AsyncClient, sid: str
) -> None:
    async def run(code: str) -> str:
        response = await http.post(f"/v1/sessions/{sid}/calls", json={"input": {"code": code}})
        text: str = response.json()["content"][0]["text"]
        return text

    look = "import os; ('x' in globals(), os.path.exists('f'))"
    await run("x = 1; open('f', 'w').close()")
    assert await run(look) == "=> (True, True)"
    restarted = await http.post(f"/v1/sessions/{sid}/restart")
    assert (restarted.status_code, restarted.json()["generation"]) == (200, 2)
    assert await run(look) == "=> (False, True)"
    reset = await http.post(f"/v1/sessions/{sid}/reset")
    assert (reset.status_code, reset.json()["generation"]) == (200, 3)
    assert await run(look) == "=> (False, False)"


async def test_tools_are_listed_in_the_shape_that_mcp_has(
    http: httpx.AsyncClient, sid: str
) -> None:
    listed = await http.get(f"/v1/sessions/{sid}/tools", params={"format": "mcp"})
    (tool,) = listed.json()["tools"]
    assert tool["name"] == "repl"
    assert tool["inputSchema"]["required"] == ["code"]
    assert "Python" in tool["description"]
    assert tool["description"] == (await http.get(f"/v1/sessions/{sid}")).json()["description"]
    unknown = await http.get(f"/v1/sessions/{sid}/tools", params={"format": "soap"})
    assert (unknown.status_code, unknown.json()["code"]) == (422, "invalid_input")


async def test_extensions_are_inline_or_named_and_all_problems_come_together(
    http: httpx.AsyncClient,
) -> None:
    inline = {"code": "answer = 42", "description": "`answer` is there."}
    opened = await http.post("/v1/sessions", json={"id": "e", "extensions": [inline]})
    assert opened.status_code == 201
    assert "`answer` is there." in opened.json()["description"]
    call = await http.post("/v1/sessions/e/calls", json={"input": {"code": "answer"}})
    assert call.json()["content"][0]["text"] == "=> 42"

    refused = await http.post(
        "/v1/sessions", json={"extensions": [{"name": "nope"}, {"name": "neither"}]}
    )
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (422, "extension_invalid")
    assert len(problem["issues"]) == 2

    failing = {"code": "print('before')\n1 / 0", "description": "Fails."}
    failed = await http.post("/v1/sessions", json={"extensions": [failing]})
    problem = failed.json()
    assert (failed.status_code, problem["code"]) == (422, "extension_setup_failed")
    assert "ZeroDivisionError" in problem["traceback"]
    assert problem["output"] == "before\n"


async def test_what_can_not_be_opened_says_why_and_leaves_nothing(
    service: Running, http: httpx.AsyncClient
) -> None:
    for body, status, code in [
        ({"kernel": "no-such-kernel"}, 422, "backend_unavailable"),
        ({"environment": "nowhere"}, 422, "backend_unavailable"),
        ({"isolation": "best", "kernel": "python3"}, 422, "isolation_unavailable"),
        ({"limits": {"timeout_s": 10_000}}, 422, "invalid_input"),
        ({"limits": {"nonsense": 1}}, 422, "invalid_input"),
        ({"backend": "mainframe"}, 422, "invalid_input"),
        ({"files": {"../up": {"text": ""}}}, 422, "invalid_input"),
        ({"files": {"a": {"text": ""}, "a/b": {"text": ""}}}, 422, "invalid_input"),
        ({"env": {"A": "nul\0"}}, 422, "invalid_input"),
        ({"unknown_field": 1}, 422, "invalid_input"),
        ({"id": "../etc"}, 422, "invalid_input"),
        ({"kernel": "nul\0"}, 422, "backend_unavailable"),
    ]:
        response = await http.post("/v1/sessions", json=body)
        assert (response.status_code, response.json()["code"]) == (status, code), response.text
        assert response.json()["detail"]
    assert (await http.get("/v1/sessions")).json() == {"sessions": []}


async def test_a_client_that_goes_away_while_its_session_opens_leaves_none(
    service: Running, http: httpx.AsyncClient
) -> None:
    slow = {
        "code": "import time; open('started', 'w').close(); time.sleep(600)",
        "description": ".",
    }
    body = httpx.Request("POST", service.url, json={"extensions": [slow]}).content
    raw = await service.open_raw()
    head = (
        f"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer test-key\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await raw.send_all(head.encode() + body)
    root = service.coordinator._workspaces
    await _until(lambda: any(Path(root).glob("*/work/started")) if root.exists() else False)
    await raw.aclose()
    await _until(lambda: not any(root.iterdir()))
    assert (await http.get("/v1/sessions")).json() == {"sessions": []}


async def _until(true: object) -> None:
    """Another process does it: look as often as the others have had their turn."""
    assert callable(true)
    while not true():
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_sessions_beyond_the_most_are_refused(start: Start) -> None:
    async with start(max_sessions=1) as service, service.client() as http:
        assert (await http.post("/v1/sessions", json={})).status_code == 201
        refused = await http.post("/v1/sessions", json={})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
