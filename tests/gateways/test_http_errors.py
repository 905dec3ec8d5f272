from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx
import pytest
import structlog.testing
from http_service import KEY, Running, Start
from hypothesis import given
from hypothesis import strategies as st

from replsvc.calls import Event, utc_now
from replsvc.gateways.body import MAX_DEPTH, parse
from replsvc.gateways.encoding import event_json, sse
from replsvc.gateways.problem import MalformedJsonError

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"input": {"code": "1"},}',
        b'{"input": {"code": "\xff"}}',
        b'{"input": {"code": "\\ud800"}}',
        b'{"input": {"x": NaN}}',
        b'{"input": {"x": Infinity}}',
        b'{"input": {"x": 1e999}}',
        b'{"input": {"x": ' + b"9" * 5000 + b"}}",
        b'{"input": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"input": ' + b'{"a":' * 80 + b"1" + b"}" * 80 + b"}",
        b"\xef\xbb\xbf{}",
        b" ",
    ],
)
async def test_a_body_that_is_no_json_is_a_400_and_no_call(
    service: Running, http: httpx.AsyncClient, sid: str, body: bytes
) -> None:
    before = (await service.coordinator.log.feed(sid)).last_seq
    response = await http.post(f"/v1/sessions/{sid}/calls", content=body, headers=JSON)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (400, "malformed_json"), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["detail"]
    assert problem["hint"]
    assert (await service.coordinator.log.feed(sid)).last_seq == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ("text", "body"),
        (None, "body"),
        ({"input": []}, "input"),
        ({"tool": 5}, "tool"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"timeout_s": 10_000}, "timeout_s"),
        ({"timeout_s": "none"}, "timeout_s"),
        ({"timeout_s": None}, "timeout_s"),
        ({"id": "a/b"}, "id"),
        ({"id": "nul\0"}, "id"),
        ({"env": {"A": 1}}, "env"),
        ({"env": {"A=": "1"}}, "env"),
        ({"env": {"A": "nul\0"}}, "env"),
        ({"on_disconnect": "weep"}, "on_disconnect"),
        ({"code": "1"}, "code"),
    ],
)
async def test_a_wrong_envelope_names_its_field_and_is_no_call(
    service: Running, http: httpx.AsyncClient, sid: str, body: Any, field: str
) -> None:
    before = (await service.coordinator.log.feed(sid)).last_seq
    response = await http.post(f"/v1/sessions/{sid}/calls", json=body)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (422, "invalid_input"), problem
    assert field in problem["detail"]
    assert problem["instance"] == f"/v1/sessions/{sid}/calls"
    assert (await service.coordinator.log.feed(sid)).last_seq == before


async def test_nul_bytes_in_code_are_pythons_own_matter(http: httpx.AsyncClient, sid: str) -> None:
    body = {"input": {"code": "a\0b", "title": "nul\0 title"}}
    call = (await http.post(f"/v1/sessions/{sid}/calls", json=body)).json()
    assert call["status"] == "error"
    assert call["error"]["ename"] in ("SyntaxError", "ValueError")


async def test_unknown_paths_and_methods_are_problems_too(http: httpx.AsyncClient) -> None:
    for method, path, status, code in [
        ("GET", "/", 404, "route_not_found"),
        ("GET", "/v1/nothing", 404, "route_not_found"),
        ("GET", "/v1/sessions/", 404, "route_not_found"),
        ("GET", "/v1/sessions/%00", 404, "session_not_found"),
        ("GET", "/v1/sessions/%ff%fe", 404, "session_not_found"),
        ("GET", "/v1/sessions/" + "x" * 5000, 404, "session_not_found"),
        ("PUT", "/v1/sessions", 405, "method_not_allowed"),
        ("GET", "/docs", 404, "route_not_found"),
        ("POST", "/v1/sessions/s/interrupt", 404, "session_not_found"),
        ("POST", "/v1/sessions/s/restart", 404, "session_not_found"),
        ("POST", "/v1/sessions/s/reset", 404, "session_not_found"),
        ("GET", "/v1/sessions/s/calls/c", 404, "session_not_found"),
        ("GET", "/v1/sessions/s/artifacts/c.log", 404, "session_not_found"),
        ("GET", "/v1/sessions/s/tools", 404, "session_not_found"),
    ]:
        response = await http.request(method, path)
        assert (response.status_code, response.json()["code"]) == (status, code), path
        assert response.headers["content-type"] == "application/problem+json"
        if status == 405:
            assert response.headers["allow"] == "POST" or "GET" in response.headers["allow"]


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None],
)
async def test_what_a_foreign_page_could_post_is_refused(
    http: httpx.AsyncClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = await http.post("/v1/sessions", content=b"{}", headers=headers)
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    assert (await http.get("/v1/sessions")).json() == {"sessions": []}


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_beyond_the_limit_is_refused_and_one_at_it_is_not(
    start: Start, chunked: bool
) -> None:
    async with start(service={"max_body_bytes": 100_000}) as service, service.client() as http:

        async def post(size: int) -> httpx.Response:
            body = b'{"name": "' + b"n" * (size - 12) + b'"}'
            assert len(body) == size

            async def parts() -> Any:
                for begin in range(0, size, 1000):
                    yield body[begin : begin + 1000]

            return await http.post(
                "/v1/sessions", content=parts() if chunked else body, headers=JSON
            )

        over = await post(100_001)
        assert (over.status_code, over.json()["code"]) == (413, "body_too_large")
        assert over.json()["limit"] == 100_000
        # At the limit it is read, and found to have too long a name.
        assert (await post(100_000)).status_code == 422


async def test_a_fault_of_ours_tells_nothing_of_its_inside_and_is_logged_without_the_key(
    monkeypatch: pytest.MonkeyPatch, service: Running, http: httpx.AsyncClient
) -> None:
    def broken() -> None:
        raise RuntimeError("the inside")

    monkeypatch.setattr(service.coordinator, "list", broken)
    with structlog.testing.capture_logs() as logs:
        response = await http.get("/v1/sessions")
    assert (response.status_code, response.json()["code"]) == (500, "internal_error")
    assert "inside" not in response.text
    (entry,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert "RuntimeError: the inside" in entry["traceback"]
    assert KEY not in str(logs)
    assert (await http.get("/healthz")).status_code == 200


async def test_the_documentation_names_every_route_model_and_error(
    http: httpx.AsyncClient,
) -> None:
    schema = (await http.get("/openapi.json")).json()
    assert set(schema["paths"]) == {
        "/healthz",
        "/readyz",
        "/v1/sessions",
        "/v1/sessions/{sid}",
        "/v1/sessions/{sid}/interrupt",
        "/v1/sessions/{sid}/restart",
        "/v1/sessions/{sid}/reset",
        "/v1/sessions/{sid}/tools",
        "/v1/sessions/{sid}/calls",
        "/v1/sessions/{sid}/batches",
        "/v1/sessions/{sid}/calls/{cid}",
        "/v1/sessions/{sid}/events",
        "/v1/sessions/{sid}/inputs",
        "/v1/sessions/{sid}/inputs/{input_id}",
        "/v1/sessions/{sid}/artifacts/{artifact}",
    }
    models = schema["components"]["schemas"]
    assert {"Call", "CallRequest", "SessionInfo", "SessionRequest", "Problem"} <= set(models)
    assert "HTTPValidationError" not in models
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            responses = operation["responses"]
            if path.startswith("/v1/"):
                assert operation["security"] == [{"key": []}]
                assert {"400", "401", "403", "413", "415", "500"} <= set(responses), (path, method)
            for status, response in responses.items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (path, status)
    call = schema["paths"]["/v1/sessions/{sid}/calls"]["post"]["responses"]
    assert set(call["200"]["content"]) == {"application/json", "text/event-stream"}
    text = json.dumps(schema)
    for name in _references(schema):
        assert name in models, name
    assert "queue_full" in text


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if isinstance(value, dict):
        found = set().union(*map(_references, value.values()))
        reference = value.get("$ref")
        return found | ({reference.rpartition("/")[2]} if isinstance(reference, str) else set())
    return set()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_is_taken_down_to_the_deepest_level_and_no_further(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    parse(opening * MAX_DEPTH + b"0" + closing * MAX_DEPTH)
    with pytest.raises(MalformedJsonError, match="64 levels"):
        parse(opening * (MAX_DEPTH + 1) + b"0" + closing * (MAX_DEPTH + 1))


@given(st.binary())
def test_bytes_are_json_or_a_clear_error(body: bytes) -> None:
    with contextlib.suppress(MalformedJsonError):  # anything else is a failure
        assert parse(body) == json.loads(body)


@given(
    st.dictionaries(st.text(), st.text(st.characters())),
    st.none() | st.binary(),
)
def test_any_event_can_be_encoded_on_one_line(data: dict[str, str], blob: bytes | None) -> None:
    event = Event(seq=7, kind="output", call_id="c", at=utc_now(), data=data, blob=blob)
    encoded = json.loads(event_json(event))
    expected = dict(data)
    if blob is not None:
        expected["text"] = blob.decode("utf-8", "backslashreplace")
    assert encoded["data"] == expected
    assert set(encoded) == {"seq", "kind", "call_id", "at", "data"}
    lines = sse(event).split(b"\n")
    assert [line.split(b": ")[0] for line in lines] == [b"id", b"event", b"data", b"", b""]
