"""Values and displays that no host takes are cut or left out, with a word; no name is lost."""

from __future__ import annotations

import pytest
from call_events import outputs

from replsvc.session import Session
from replsvc_kernels._channels import MAX_JSON_VALUES, MAX_SMALL_MESSAGE_BYTES
from replsvc_kernels.guest import bounds
from replsvc_kernels.messages import Limits


def test_what_a_guest_sends_is_within_what_its_host_takes() -> None:
    limits = Limits()
    assert limits.max_message_bytes // 2 < bounds.MAX_BUNDLE_BYTES < limits.max_message_bytes
    # data, the bundle and the content are levels too
    assert limits.max_json_depth > bounds.MAX_DEPTH + 3
    assert bounds.MAX_VALUES < MAX_JSON_VALUES
    assert bounds.MAX_PAYLOAD_BYTES < MAX_SMALL_MESSAGE_BYTES


@pytest.mark.parametrize("text", ["'x' * 70_000_000", "'\\x01\\udc80\u00e9' * 5_000_000"])
async def test_a_text_that_is_too_large_is_cut_and_says_so(session: Session, text: str) -> None:
    await session.run(f"class T:\n    def __repr__(self): return {text}\na = 6")
    call = await session.run("T()", timeout_s=60)
    assert call.status == "ok"
    (event,) = [event for event in await outputs(session, call) if "data" in event.data]
    shown = event.data["data"]["text/plain"]
    assert len(shown) > 1_000_000
    assert "000 characters left out: more can't be shown; write it to a file" in shown
    assert (await session.run("a")).text == "=> 6"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("display({'image/png': 'A' * 70_000_000}, raw=True)", "image/png left out: it is larger"),
        ("JSON(deep)", "application/json left out: it is nested over"),
        ("JSON(round)", "application/json left out: it is nested over"),
        ("JSON([[] for _ in range(1_200_000)])", "application/json left out: it is of more than"),
        ("JSON({'a': iter(range(1_200_000))})", "application/json left out: it is of more than"),
        ("display({'text/plain': 'p'}, metadata={'m': deep}, raw=True)", "metadata left out"),
        ("get_ipython().set_next_input('x' * 9_000_000)", "next input is too large"),
    ],
)
async def test_what_a_host_would_refuse_is_named_instead(
    session: Session, code: str, says: str
) -> None:
    await session.run(
        "from IPython.display import JSON\ndeep = []\nfor _ in range(300): deep = [deep]\n"
        "round = []; round.append(round)\na = 6"
    )
    call = await session.run(code, timeout_s=60)
    assert call.status == "ok"
    assert says in call.text
    assert (await session.run("a")).text == "=> 6"


@pytest.mark.parametrize("number", ["float('nan')", "float('inf')", "-float('inf')"])
async def test_numbers_that_json_lacks_are_null_and_nothing_warns(
    session: Session, number: str
) -> None:
    call = await session.run(f"from IPython.display import JSON\nJSON({{'a': [{number}, 1.5]}})")
    assert call.text == '=> {"a":[null,1.5]}'
    call = await session.run(f"display(JSON({{'a': {number}, 'b': '\\udc80'}}))")
    assert "null" in call.text
    assert "Warning" not in call.text
