"""From checked wire messages to typed values: pure, and suspicious of every type and size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from replsvc_kernels._channels import Message
from replsvc_kernels.kernel import ProtocolViolation
from replsvc_kernels.messages import (
    ClearOutput,
    DisplayData,
    ExecuteResult,
    Failure,
    InputRequest,
    Limits,
    Output,
    Reply,
    Stream,
)

MAX_COUNT = 2**53  # what every JSON reader and database holds exactly
MAX_NAME_CHARS = 1_000
MAX_TEXT_CHARS = 1_000_000
MAX_PROMPT_CHARS = 4_000


def text(value: object, limit: int = MAX_TEXT_CHARS) -> str:
    """A string of at most `limit` characters; empty for anything else."""
    return value[:limit] if isinstance(value, str) else ""


def count(value: object) -> int | None:
    """A whole number from 0 to 2**53, else None."""
    ok = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
    return value if ok else None  # type: ignore[return-value]


def seconds(value: object) -> float | None:
    """A finite, non-negative number of seconds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_COUNT and math.isfinite(value) else None


def json_object(value: object) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def parse_failure(content: Mapping[str, Any], limits: Limits) -> Failure:
    """`ename`, `evalue` and `traceback` of an error message or reply, whatever types they have."""
    lines = content.get("traceback")
    return Failure(
        text(content.get("ename"), MAX_NAME_CHARS) or "Error",
        text(content.get("evalue")),
        tuple(text(line) for line in lines[: limits.max_traceback_lines])
        if isinstance(lines, list)
        else (),
        count(content.get("left_out")) or 0,
    )


def parse_output(message: Message) -> Output | None:
    """An output of a cell, or None for messages that are none."""
    content, metadata = message.content, json_object(message.content.get("metadata"))
    match message.type:
        case "display_data" | "update_display_data":
            display_id = json_object(content.get("transient")).get("display_id")
            return DisplayData(
                json_object(content.get("data")),
                metadata,
                text(display_id, MAX_NAME_CHARS) if isinstance(display_id, str) else None,
                update=message.type == "update_display_data",
            )
        case "execute_result":
            return ExecuteResult(
                json_object(content.get("data")), metadata, count(content.get("execution_count"))
            )
        case "clear_output":
            return ClearOutput(content.get("wait") is True)
        case "stream":
            name, printed = content.get("name"), content.get("text")
            if name in ("stdout", "stderr") and isinstance(printed, str):
                # Whole: how long a message may be was checked when it came.
                return Stream(name, printed.encode("utf-8", "backslashreplace"))
    return None


def parse_input_request(message: Message, number: int) -> InputRequest:
    """What a cell asks, with a prompt of a length that people read."""
    prompt = text(message.content.get("prompt"), MAX_PROMPT_CHARS)
    return InputRequest(prompt, message.content.get("password") is True, number)


class Placed(NamedTuple):
    """An output, the number of the marker where it stands if it has one, its size on the wire."""

    mark: int | None
    output: Output
    size: int


def parse_last(message: Message) -> Placed | None:
    """The cell's value, where the guest has put it into the reply instead of a message before."""
    value = json_object(json_object(message.metadata.get("replsvc")).get("result"))
    if not value:
        return None
    output = ExecuteResult(
        json_object(value.get("data")),
        json_object(value.get("metadata")),
        count(value.get("execution_count")),
    )
    return Placed(count(value.get("mark")), output, message.size)


def parse_reply(message: Message, limits: Limits) -> Reply:
    """The end of a cell. Raises `ProtocolViolation` for a status that is not in the protocol."""
    content, own = message.content, json_object(message.metadata.get("replsvc"))
    status = content.get("status")
    if status == "abort":  # as kernels of protocol 5.0 say it
        status = "aborted"
    if status not in ("ok", "error", "aborted"):
        raise ProtocolViolation("an execute_reply without status")
    return Reply(
        status,
        count(content.get("execution_count")),
        parse_failure(content, limits) if status == "error" else None,
        seconds(own.get("cpu_s")),
        count(own.get("max_rss")),
        count(own.get("published")),
    )
