"""Code that asks, over HTTP: the question is an event, the answer a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from http_service import Running, Start


async def answer(http: httpx.AsyncClient, sid: str, asked: Any, text: str | None) -> httpx.Response:
    path = f"/v1/sessions/{sid}/inputs/{asked['data']['id']}"
    return await http.post(path, json={"text": text})


async def test_a_stream_shows_the_question_and_goes_on_after_the_answer(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    code = "print('before')\nname = input('name? ')\nprint('hi', name)\nlen(name)"
    body = {"input": {"code": code}, "stdin": True, "id": "c"}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        seen = [frame async for frame in _until(reader, "status")]
        assert [frame["event"] for frame in seen] == [
            "call_started", "output", "input_request", "status",
        ]  # fmt: skip
        asked = seen[2]["data"]
        assert asked["data"]["prompt"] == "name? "
        assert asked["data"]["password"] is False
        assert (await http.get(f"/v1/sessions/{sid}/calls/c")).json()["status"] == "waiting"
        (listed,) = (await http.get(f"/v1/sessions/{sid}/inputs")).json()["inputs"]
        assert listed == {**asked["data"], "call_id": "c", "asked_at": listed["asked_at"]}

        response = await answer(http, sid, asked, "Ada")
        assert (response.status_code, response.content) == (204, b"")
        status = await reader.until("status")
        assert status["data"]["status"] == "running"
        assert (status["data"]["input"], status["data"]["outcome"]) == (listed["id"], "answered")
        output = await reader.until("output")
        assert output["data"]["text"] == "hi Ada\n"
        final = await reader.final()
    assert (final["status"], final["result"]) == ("ok", {"text/plain": "3"})
    assert final["times"]["wait_s"] > 0
    assert (await http.get(f"/v1/sessions/{sid}/inputs")).json() == {"inputs": []}

    again = await answer(http, sid, asked, "Eve")
    assert (again.status_code, again.json()["code"]) == (409, "already_answered")


async def _until(reader: Any, kind: str) -> Any:
    async for frame in reader:
        yield frame
        if frame["event"] == kind:
            return


async def test_a_call_that_is_not_streamed_is_answered_by_another_client(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    results = []

    async def call() -> None:
        body = {"input": {"code": "import getpass; len(getpass.getpass())"}, "stdin": True}
        results.append((await http.post(f"/v1/sessions/{sid}/calls", json=body)).json())

    async with (
        trio.open_nursery() as nursery,
        service.events(f"/v1/sessions/{sid}/events") as watching,
    ):
        nursery.start_soon(call)
        asked = await watching.until("input_request")
        assert asked["data"]["password"] is True
        await answer(http, sid, asked, "hunter2")
    assert results[0]["result"] == {"text/plain": "7"}


async def test_null_is_the_end_of_input(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    body = {"input": {"code": "input()"}, "stdin": True}
    async with service.events(f"/v1/sessions/{sid}/calls", post=body) as reader:
        await answer(http, sid, await reader.until("input_request"), None)
        assert (await reader.final())["error"]["ename"] == "EOFError"


async def test_a_text_answers_and_nothing_is_asked(http: httpx.AsyncClient, sid: str) -> None:
    body = {"input": {"code": "input() + input()"}, "stdin": "a\nb\n"}
    call = (await http.post(f"/v1/sessions/{sid}/calls", json=body)).json()
    assert call["result"] == {"text/plain": "'ab'"}


async def test_without_stdin_asking_fails_at_once(http: httpx.AsyncClient, sid: str) -> None:
    for fields in ({}, {"stdin": False}):
        body = {"input": {"code": "input()"}, **fields}
        call = (await http.post(f"/v1/sessions/{sid}/calls", json=body)).json()
        assert call["error"]["ename"] == "StdinNotImplementedError"


@pytest.mark.parametrize("body", [
    {}, {"text": 5}, {"text": "a\nb"}, {"text": "a\0"}, {"text": "x" * 65_537},
    {"text": "a", "more": 1}, [],
])  # fmt: skip
async def test_what_is_no_answer_is_refused_and_the_question_stays(
    service: Running, http: httpx.AsyncClient, sid: str, body: Any
) -> None:
    wanted = {"input": {"code": "input()"}, "stdin": True}
    async with service.events(f"/v1/sessions/{sid}/calls", post=wanted) as reader:
        asked = await reader.until("input_request")
        path = f"/v1/sessions/{sid}/inputs/{asked['data']['id']}"
        refused = await http.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
        assert (await answer(http, sid, asked, "right")).status_code == 204
        assert (await reader.final())["result"] == {"text/plain": "'right'"}


async def test_unknown_questions_and_sessions_are_not_found(
    http: httpx.AsyncClient, sid: str
) -> None:
    for session, code in ((sid, "question_not_found"), ("never", "session_not_found")):
        response = await http.post(f"/v1/sessions/{session}/inputs/x", json={"text": ""})
        assert (response.status_code, response.json()["code"]) == (404, code)
    assert (await http.get("/v1/sessions/never/inputs")).status_code == 404
    hint = (await http.post(f"/v1/sessions/{sid}/inputs/x", json={"text": ""})).json()["hint"]
    assert f"/v1/sessions/{sid}/inputs" in hint


@pytest.mark.parametrize("stdin", [1, "a\0b", None, ["a"]])
async def test_a_wrong_stdin_is_no_call(http: httpx.AsyncClient, sid: str, stdin: Any) -> None:
    body = {"input": {"code": "1"}, "stdin": stdin}
    response = await http.post(f"/v1/sessions/{sid}/calls", json=body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")


async def test_a_client_that_leaves_while_it_is_asked_ends_the_call(start: Start) -> None:
    async with start(limits={"disconnect_grace_s": 0}) as service, service.client() as http:
        await http.post("/v1/sessions", json={"id": "s"})
        body = {"input": {"code": "input()"}, "stdin": True, "id": "left"}
        async with service.events("/v1/sessions/s/calls", post=body) as reader:
            asked = await reader.until("input_request")
        async with service.events("/v1/sessions/s/events") as reader:
            final = await reader.final("left")
        assert (final["status"], final["state_lost"]) == ("cancelled", False)
        assert (await answer(http, "s", asked, "late")).status_code == 409


async def test_interrupt_and_close_end_a_question(
    service: Running, http: httpx.AsyncClient, sid: str
) -> None:
    path = f"/v1/sessions/{sid}"
    body = {"input": {"code": "input()"}, "stdin": True}
    async with service.events(f"{path}/calls", post=body) as reader:
        await reader.until("input_request")
        ended = await http.post(f"{path}/interrupt")
        assert ended.json() == {"delivered": True, "still_running": False}
        assert (await reader.final())["status"] == "interrupted"
    async with service.events(f"{path}/calls", post=body) as reader:
        asked = await reader.until("input_request")
        assert (await http.delete(path)).status_code == 204
        assert (await reader.final())["status"] == "killed"
    gone = await answer(http, sid, asked, "late")
    assert (gone.status_code, gone.json()["code"]) == (404, "session_not_found")


async def test_openapi_shows_the_questions_and_the_answer(http: httpx.AsyncClient) -> None:
    schema = (await http.get("/openapi.json")).json()
    assert set(schema["paths"]["/v1/sessions/{sid}/inputs"]) == {"get"}
    post = schema["paths"]["/v1/sessions/{sid}/inputs/{input_id}"]["post"]
    assert {"204", "404", "409", "422"} <= set(post["responses"])
    assert "stdin" in schema["components"]["schemas"]["CallRequest"]["properties"]
