from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsvc_kernels._channels import Message
from replsvc_kernels._parse import count, parse_failure, parse_output, parse_reply, seconds
from replsvc_kernels.kernel import ProtocolViolation
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Failure,
    Limits,
    Reply,
    Stream,
)

LIMITS = Limits(max_traceback_lines=3)
hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)  # fmt: skip
FIELDS = [
    "data", "metadata", "transient", "display_id", "execution_count", "wait", "name", "text",
    "status", "ename", "evalue", "traceback", "replsvc", "cpu_s", "max_rss",
]  # fmt: skip
contents = st.dictionaries(st.sampled_from(FIELDS), hostile, max_size=8)
TYPES = ["display_data", "update_display_data", "execute_result", "clear_output", "stream", "x"]


def parsed(type_: str, **content: Any) -> object:
    return parse_output(Message(type_, "1", content, {}))


@given(st.sampled_from(TYPES), contents, contents)
def test_any_content_gives_typed_values(
    type_: str, content: dict[str, Any], metadata: dict[str, Any]
) -> None:
    output = parse_output(Message(type_, "1", content, metadata))
    match output:
        case None:
            assert type_ in ("x", "stream")
        case Stream():
            assert isinstance(output.data, bytes)
            assert output.name in ("stdout", "stderr")
        case DisplayData():
            assert isinstance(output.data, dict)
            assert isinstance(output.metadata, dict)
            assert output.display_id is None or isinstance(output.display_id, str)
        case ExecuteResult():
            assert isinstance(output.data, dict)
            assert output.execution_count is None or 0 <= output.execution_count <= 2**53
        case ClearOutput():
            assert isinstance(output.wait, bool)


@given(contents, contents)
def test_any_reply_gives_typed_values_or_a_violation(
    content: dict[str, Any], metadata: dict[str, Any]
) -> None:
    try:
        reply = parse_reply(Message("execute_reply", "1", content, {"replsvc": metadata}), LIMITS)
    except ProtocolViolation:
        assert content.get("status") not in ("ok", "error", "aborted", "abort")
        return
    assert reply.execution_count is None or 0 <= reply.execution_count <= 2**53
    assert reply.cpu_s is None or 0 <= reply.cpu_s < float("inf")
    assert (reply.failure is not None) == (reply.status == "error")


def test_streams_keep_what_is_no_unicode_as_escapes() -> None:
    output = parsed("stream", name="stderr", text="a\ud800b")
    assert output == Stream("stderr", b"a\\ud800b")


def test_a_stream_of_another_name_is_no_output() -> None:
    assert parsed("stream", name="stdlog", text="x") is None


def test_updates_and_identifiers_are_kept() -> None:
    data = {"text/plain": "x"}
    assert parsed("display_data", data=data) == DisplayData(data)
    assert parsed("update_display_data", data=data, transient={"display_id": "a"}) == DisplayData(
        data, display_id="a", update=True
    )


def test_only_true_means_wait() -> None:
    assert parsed("clear_output", wait=True) == ClearOutput(wait=True)
    assert parsed("clear_output", wait="no") == ClearOutput(wait=False)


def test_tracebacks_are_bounded_and_names_never_empty() -> None:
    failure = parse_failure({"traceback": ["a", 1, "c", "d"], "ename": None}, LIMITS)
    assert failure == Failure("Error", "", ("a", "", "c"))


def test_an_old_kernels_abort_is_aborted() -> None:
    message = Message("execute_reply", "1", {"status": "abort"}, {})
    assert parse_reply(message, LIMITS) == Reply("aborted")


@pytest.mark.parametrize("value", [True, -1, 1.5, "1", None, 2**53 + 1, 10**400])
def test_what_is_no_count_is_none(value: object) -> None:
    assert count(value) is None


@pytest.mark.parametrize("value", [True, -1, "1", None, float("inf"), float("nan"), 10**400])
def test_what_is_no_duration_is_none(value: object) -> None:
    assert seconds(value) is None
