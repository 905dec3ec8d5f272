from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replsvc_kernels._channels import DELIMITER, Codec
from replsvc_kernels.kernel import ProtocolViolation
from replsvc_kernels.messages import Limits

KEY = b"a key"
LIMITS = Limits(max_message_bytes=10_000, max_json_depth=8)


def codec() -> Codec:
    return Codec(KEY, LIMITS)


def message(
    header: object = None, parent: object = None, metadata: object = None, content: object = None
) -> list[bytes]:
    return signed(
        *(
            part if isinstance(part, bytes) else json.dumps(part).encode()
            for part in (
                {"msg_type": "stream"} if header is None else header,
                {"msg_id": "1"} if parent is None else parent,
                {} if metadata is None else metadata,
                {} if content is None else content,
            )
        )
    )


def signed(*parts: bytes) -> list[bytes]:
    return [b"topic", DELIMITER, codec()._sign(list(parts)), *parts]


def test_what_we_encode_we_decode() -> None:
    ours = codec()
    id_, frames = ours.encode("execute_request", {"code": "é\ud800\0"}, {"replsvc": {"pair": 1}})
    decoded = codec().decode(frames)
    assert (decoded.type, decoded.parent) == ("execute_request", "")
    assert decoded.content == {"code": "é\ud800\0"}
    assert decoded.metadata == {"replsvc": {"pair": 1}}
    assert json.loads(frames[2])["msg_id"] == id_
    assert ours.encode("x", {}, {})[0] != id_


def test_a_messages_size_is_that_of_all_its_frames() -> None:
    frames = [*message(), b"buffer"]
    assert codec().decode(frames).size == sum(map(len, frames))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "delimiter"),
        ([b"a", b"b"], "delimiter"),
        (message()[:-1], "missing frames"),
        ([b"topic"] * 20 + message(), "missing frames"),
        ([*message()[:2], b"0" * 64, *message()[3:]], "signature"),
        ([*message()[:2], b"", *message()[3:]], "signature"),
        ([*message()[:2], "é".encode(), *message()[3:]], "signature"),
        ([*message()[:-1], b'{"a": 1}'], "signature"),
        ([*message(), b"x" * 10_001], "over 10000 bytes"),
        (message(content=b'{"x": NaN}'), "NaN"),
        (message(content=b'{"x": -Infinity}'), "Infinity"),
        (message(content=b'{"x": 1e999}'), "too large"),
        (message(content=b'{"x": ' + b"9" * 5_000 + b"}"), "not JSON"),
        (message(content=b'{"x": "\xff"}'), "not JSON"),
        (message(content=b"{"), "not JSON"),
        (message(content=[1]), "not objects"),
        (message(content=b"null"), "not objects"),
        (message(parent=b'"1"'), "not objects"),
        (message(metadata=b"1"), "not objects"),
        (message(header={"msg_type": 1}), "wrong types"),
        (message(header={}), "wrong types"),
        (message(parent={"msg_id": ["1"]}), "wrong types"),
        (message(content=b'{"x":' * 9 + b"1" + b"}" * 9), "nested over 8"),
        (message(content=b'{"x":' + b"[" * 4_000 + b"]" * 4_000 + b"}"), "nested|not JSON"),
    ],
)
def test_what_no_honest_kernel_says_is_refused(frames: list[bytes], reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        codec().decode(frames)


def test_nesting_up_to_the_bound_is_accepted() -> None:
    deep: Any = 1
    for _ in range(LIMITS.max_json_depth):
        deep = {"x": deep}
    assert codec().decode(message(content=deep)).content == deep


def test_without_a_key_nothing_is_signed_and_nothing_checked() -> None:
    ours = Codec(b"", LIMITS)
    _, frames = ours.encode("x", {}, {})
    assert frames[1] == b""
    assert ours.decode(frames).type == "x"


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 8))
def test_garbage_is_refused_and_nothing_else(frames: list[bytes], at: int) -> None:
    frames.insert(min(at, len(frames)), DELIMITER)
    with pytest.raises(ProtocolViolation):
        codec().decode(frames)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
parts = st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode())


@given(
    st.lists(parts, min_size=3, max_size=3),
    st.just(b'{"msg_type": "x"}') | parts,
)
def test_signed_garbage_is_a_message_or_a_violation(rest: list[bytes], header: bytes) -> None:
    try:
        decoded = codec().decode(signed(header, *rest))
    except ProtocolViolation:
        return
    json.dumps([decoded.content, decoded.metadata], allow_nan=False)
