"""The tools that a cell's code may call: its requests, and the replies to them.

What is asked is hostile: only tools that were offered, so many at once, and of plain data. Whatever
else is asked has an error for its answer, and one that nobody can answer is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from replsvc_kernels._channels import Message
from replsvc_kernels._parse import count, text
from replsvc_kernels.messages import ToolRequest, ToolSpec, ToolWithdrawn

MAX_AT_ONCE = 256
MAX_NAME_CHARS = 1_000
MAX_ERROR_CHARS = 64 * 1024
MAX_RESULT_BYTES = 64 * 1024 * 1024
# A result goes in pieces of this size, so that others pass between them.
PIECE_CHARS = 64 * 1024
# What has more values or characters is made JSON in a thread.
SMALL_VALUES, SMALL_CHARS = 1_000, 50_000

Send = Callable[[Mapping[str, Any], bool], Awaitable[None]]
"""Sends a `tool_reply`; with the flag set, first waits until the kernel has taken what is sent."""


def as_content(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """What a guest is told of its tools."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
            "signature": tool.signature,
        }
        for tool in tools
    ]


def error_of(error: Mapping[str, str]) -> dict[str, str]:
    """An error of a bounded size. Raises `ValueError` where it has no message."""
    if "message" not in error:
        raise ValueError("the error of a tool has a `message`, and may have a `type`")
    kind = str(error.get("type") or "ToolError")
    return {"type": kind[:MAX_NAME_CHARS], "message": str(error["message"])[:MAX_ERROR_CHARS]}


class ToolCalls:
    """One cell's calls of tools. `send` sends the replies."""

    def __init__(self, tools: Sequence[ToolSpec], send: Send) -> None:
        self._offered = frozenset(tool.name for tool in tools)
        self._send = send
        self._pending: set[int] = set()

    async def take(self, message: Message) -> ToolRequest | ToolWithdrawn | None:
        """What a message asks for, None where nobody is to be told of it."""
        content = message.content
        id_ = count(content.get("id"))
        if id_ is None:
            return None
        if message.type == "tool_withdrawn":
            return ToolWithdrawn(id_) if self._take_out(id_) else None
        name, arguments = text(content.get("name"), MAX_NAME_CHARS), content.get("arguments")
        why = ""
        if id_ in self._pending:
            return None
        if name not in self._offered:
            why = "this session has no such tool"
        elif not isinstance(arguments, dict):
            why = "its arguments are no object"
        elif len(self._pending) >= MAX_AT_ONCE:
            why = f"{MAX_AT_ONCE} calls of tools are waited for already"
        if why or not isinstance(arguments, dict):
            await self._send({"id": id_, "error": error_of({"message": why})}, False)
            return None
        self._pending.add(id_)
        is_background = content.get("background") is True
        return ToolRequest(id_, name, arguments, is_background, message.size)

    async def answer(self, id_: int, result: object, error: Mapping[str, str] | None) -> bool:
        """See `Cell.answer_tool`."""
        if id_ not in self._pending:
            return False
        if error is not None:
            refused = error_of(error)
            self._pending.discard(id_)
            await self._send({"id": id_, "error": refused}, False)
            return True
        packed = (
            pack_result(result)
            if _is_small(result)
            else await trio.to_thread.run_sync(pack_result, result)
        )
        if not self._take_out(id_):
            return False  # while that took its time
        if len(packed) > MAX_RESULT_BYTES:
            size = f"{len(packed) / 1e6:.1f} MB of at most {MAX_RESULT_BYTES / 1e6:.1f}"
            why = {"type": "ResultTooLarge", "message": f"its result is too large: {size}"}
            await self._send({"id": id_, "error": why}, False)
            return True
        await self._send_pieces(id_, packed)
        return True

    async def _send_pieces(self, id_: int, packed: str) -> None:
        last = max(len(packed) - 1, 0) // PIECE_CHARS * PIECE_CHARS
        try:
            for start in range(0, last, PIECE_CHARS):
                piece = packed[start : start + PIECE_CHARS]
                await self._send({"id": id_, "piece": piece, "more": True}, True)
        except trio.Cancelled:
            # whoever waits for the rest must hear that there is none
            why = {"type": "Cancelled", "message": "its result was not sent to its end"}
            with trio.CancelScope(shield=True):
                await self._send({"id": id_, "error": why}, False)
            raise
        await self._send({"id": id_, "piece": packed[last:]}, False)

    def _take_out(self, id_: int) -> bool:
        if id_ not in self._pending:
            return False
        self._pending.discard(id_)
        return True

    def end(self) -> list[ToolWithdrawn]:
        """The cell has ended, and waits for nothing any more."""
        pending, self._pending = sorted(self._pending), set()
        return [ToolWithdrawn(id_) for id_ in pending]


def pack_result(result: object) -> str:
    """A result as JSON. Raises `ValueError` or `TypeError` for what is none."""
    try:
        return json.dumps(result, allow_nan=False)
    except RecursionError:
        raise ValueError("a tool's result is nested too deeply") from None


def _is_small(value: object) -> bool:
    """Whether it is JSON at once; looks at no more of it than that takes."""
    values, chars, level = 0, 0, [value]
    while level:
        item = level.pop()
        values += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, Mapping):
            if len(item) > SMALL_VALUES:
                return False
            chars += sum(len(key) for key in item if isinstance(key, str))
            level.extend(item.values())
        elif isinstance(item, list | tuple):
            if len(item) > SMALL_VALUES:
                return False
            level.extend(item)
        if values > SMALL_VALUES or chars > SMALL_CHARS:
            return False
    return True
