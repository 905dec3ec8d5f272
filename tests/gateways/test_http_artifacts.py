"""Fetching artefacts over HTTP."""

from __future__ import annotations

from typing import Any

import httpx


async def made(http: httpx.AsyncClient, sid: str, code: str) -> dict[str, Any]:
    response = await http.post(
        f"/v1/sessions/{sid}/calls", json={"tool": "repl", "input": {"code": code}}
    )
    call: dict[str, Any] = response.json()
    assert call["status"] == "ok", call
    return call


async def test_a_file_that_a_cell_made_can_be_fetched_whole_and_in_parts(
    http: httpx.AsyncClient, sid: str
) -> None:
    call = await made(http, sid, "open('t.csv', 'w').write('0123456789')")
    (one,) = call["artifacts"]
    url = f"/v1/sessions/{sid}/artifacts/{one['id']}"
    whole = await http.get(url)
    assert (whole.status_code, whole.text) == (200, "0123456789")
    assert whole.headers["content-type"].startswith("text/csv")
    assert whole.headers["content-disposition"] == 'attachment; filename="t.csv"'
    part = await http.get(url, headers={"range": "bytes=2-4"})
    assert (part.status_code, part.text) == (206, "234")
    beyond = await http.get(url, headers={"range": "bytes=99-"})
    assert beyond.status_code == 416


async def test_artefacts_and_logs_outlive_their_session(http: httpx.AsyncClient, sid: str) -> None:
    call = await made(http, sid, "print('said'); open('a', 'w').write('x')")
    assert (await http.delete(f"/v1/sessions/{sid}")).status_code == 204
    for name, content in ((call["artifacts"][0]["id"], "x"), (f"{call['id']}.log", "said\n")):
        response = await http.get(f"/v1/sessions/{sid}/artifacts/{name}")
        assert (response.status_code, response.text) == (200, content)


async def test_hostile_html_is_saved_and_never_shown(http: httpx.AsyncClient, sid: str) -> None:
    call = await made(http, sid, "open('p.html', 'w').write('<script>alert(1)</script>')")
    response = await http.get(f"/v1/sessions/{sid}/artifacts/{call['artifacts'][0]['id']}")
    assert response.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_name_can_not_break_the_header(http: httpx.AsyncClient, sid: str) -> None:
    call = await made(http, sid, r"""open('a"\r\nx-evil: 1;é', 'w').write('x')""")
    response = await http.get(f"/v1/sessions/{sid}/artifacts/{call['artifacts'][0]['id']}")
    assert response.status_code == 200
    assert "x-evil" not in response.headers


async def test_what_is_not_there_is_not_found(http: httpx.AsyncClient, sid: str) -> None:
    call = await made(http, sid, "open('a', 'w').write('x')")
    for name in (f"{call['id']}.1", f"{call['id']}.x", "nobody.0", "nobody.log", "..%2f..%2fx.0"):
        response = await http.get(f"/v1/sessions/{sid}/artifacts/{name}")
        assert response.status_code == 404, name
    response = await http.get("/v1/sessions/s_unknown/artifacts/c.0")
    assert (response.status_code, response.json()["code"]) == (404, "session_not_found")
