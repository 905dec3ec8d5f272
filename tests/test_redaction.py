"""Secrets leave no trace, wherever the bytes are cut, and nothing else changes."""

import itertools
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replsvc.redaction import MASK, Redactor


def streamed(redactor: Redactor, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parts = [data[a:b] for a, b in itertools.pairwise(edges)]
    return b"".join(redactor.feed("out", part) for part in parts) + redactor.flush("out")


def test_a_secret_is_replaced_wherever_it_is_cut() -> None:
    redactor = Redactor(["hunter2!"])
    data = b"pw=hunter2! and hunter2 and hunter2!"
    for cut in range(len(data)):
        assert streamed(redactor, data, [cut]) == b"pw=[redacted] and hunter2 and [redacted]"


def test_only_the_beginning_of_a_secret_is_held_back() -> None:
    redactor = Redactor(["hunter2!"])
    assert redactor.feed("out", b"say hun") == b"say "
    assert redactor.feed("err", b"ter2!") == b"ter2!"
    assert redactor.feed("out", b"gry") == b"hungry"
    assert redactor.flush("out") == b""


def test_a_flush_still_masks_what_it_held_back() -> None:
    redactor = Redactor(["abcd", "abcdefgh"])
    assert redactor.feed("out", b"xabcd") == b"x"
    assert redactor.flush("out") == b"[redacted]"


def test_overlapping_secrets_are_masked_whole() -> None:
    redactor = Redactor(["abcdef", "efghij", "abcd"])
    assert redactor.text("1abcdefghij2") == "1[redacted]2"
    for cut in range(13):
        assert streamed(redactor, b"1abcdefghij2", [cut]) == b"1[redacted]2"


@pytest.mark.parametrize(
    "form",
    [
        lambda secret: repr(secret)[1:-1],
        lambda secret: ascii(secret)[1:-1],
        lambda secret: repr(secret.encode())[2:-1],
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret, ensure_ascii=False)[1:-1],
        lambda secret: quote(secret),
        lambda secret: quote(secret, safe=""),
        quote_plus,
    ],
)
def test_escaped_and_quoted_forms_are_found(form) -> None:  # type: ignore[no-untyped-def]
    secret = "pä/é\n\"q' z\\"
    shown = form(secret)
    redactor = Redactor([secret])
    assert redactor.text(f"<{shown}>") == f"<{MASK}>"
    assert streamed(redactor, f"<{shown}>".encode(), [3]) == b"<[redacted]>"


def test_lower_case_url_escapes_are_found() -> None:
    assert Redactor(["a/é b"]).text("a%2f%c3%a9%20b a%2f%c3%a9+b") == f"{MASK} {MASK}"


def test_bytes_of_an_environment_that_are_no_text_are_found() -> None:
    assert Redactor(["key\udcffX"]).feed("out", b"<key\xffX>") == b"<[redacted]>"
    assert Redactor(["key\ud800X"]).text("<key\ud800X>") == "<[redacted]>"


def test_json_is_redacted_with_its_keys_and_numbers() -> None:
    redactor = Redactor(["secret", "12345"])
    value = {
        "a secret": ["secret", {"x": "my secret!"}, None, True, 1.5, 12, 9123459],
        "a [redacted]": "other",
    }
    assert redactor.json(value) == {
        "a [redacted]": ["[redacted]", {"x": "my [redacted]!"}, None, True, 1.5, 12, "[redacted]"],
        "a [redacted]#2": "other",
    }
    assert value["a [redacted]"] == "other"


def test_without_secrets_a_redactor_is_false_and_hands_everything_through() -> None:
    redactor = Redactor()
    data, value = b"data", {"a": [1]}
    assert not redactor
    assert Redactor(["four"])
    assert redactor.feed("out", data) is data
    assert redactor.json(value) is value
    assert redactor.text("t") == "t"
    assert redactor.flush("out") == b""


@pytest.mark.parametrize("secret", ["", "abc", "redacted"])
def test_secrets_that_can_not_be_hidden_are_refused_without_naming_them(secret: str) -> None:
    with pytest.raises(ValueError, match="can't be redacted"):
        Redactor([secret])


def masked(data: bytes, secrets: list[bytes]) -> bytes:
    """The plainest reading: a byte is masked when an occurrence covers it."""
    spans = sorted(
        (at, at + len(secret))
        for secret in secrets
        for at in range(len(data))
        if data.startswith(secret, at)
    )
    out, end = b"", 0
    for start, stop in spans:
        if start >= end:
            out += data[end:start] + MASK.encode()
        end = max(end, stop)
    return out + data[end:]


SECRETS = st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(SECRETS, st.text("abc").map(str.encode), st.lists(st.integers(0, 99)))
def test_streaming_is_the_whole_replacement_and_no_secret_survives(
    secrets: list[str], data: bytes, cuts: list[int]
) -> None:
    redactor = Redactor(secrets)
    out = streamed(redactor, data, cuts)
    assert out == masked(data, [secret.encode() for secret in secrets])
    assert not any(secret.encode() in out for secret in secrets)
    assert redactor.text(data.decode()) == out.decode()


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=4), st.binary(), st.lists(st.integers(0, 99)))
def test_what_is_no_secret_is_not_changed(secret: str, data: bytes, cuts: list[int]) -> None:
    try:
        redactor = Redactor([secret])
    except ValueError:
        assert secret in MASK
        return
    out = streamed(redactor, data, cuts)
    assert out == streamed(redactor, data, [])
    if MASK.encode() not in out:
        assert out == data
