"""Cells for a host that listens alone: a request is read, a reply is sent, and little else.

Stock ipykernel also says that it is busy and idle, sends the last value and the error as messages
of their own, and looks at each request's age. That is most of what a small cell costs, on both
sides. A request whose metadata says `{"replsvc": {"brief": true, "pair": N}}` is answered without:
a mark in its stdout tells that it has begun, and its value travels in its reply's metadata. What a
cell displays is published as ever. All other requests are ipykernel's.
"""

# mypy: disallow-untyped-calls=False
# IPython's and ipykernel's classes carry no types

from __future__ import annotations

import hmac
import json
from datetime import datetime
from typing import Any, NamedTuple

from jupyter_client.session import DELIM

from . import compat
from .publish import pack

FLAG = b'"brief"'


class Request(NamedTuple):
    """An `execute_request`: who asks, its header as it came, and the message."""

    idents: list[bytes]
    header: bytes
    message: dict[str, Any]


def read(frames: list[Any], session: Any) -> Request | None:
    """The request in these frames if it is brief and in order; None leaves them to ipykernel.

    No digests are kept: a request that is sent twice names pipes that are gone, and runs nothing.
    """
    parts = [frame.bytes for frame in frames]
    if DELIM not in parts:
        return None
    at = parts.index(DELIM)
    idents, parts = parts[:at], parts[at + 1 :]
    if len(parts) != 5 or FLAG not in parts[3]:
        return None
    signature, *parts = parts
    if not hmac.compare_digest(signature, session.sign(parts)):
        return None
    header, parent, metadata, content = map(json.loads, parts)
    asked = metadata.get("replsvc") or {}
    if header["msg_type"] != "execute_request" or asked.get("brief") is not True:
        return None
    if not isinstance(asked.get("pair"), int):
        return None
    # as ipykernel gives it to those who look
    header["date"] = datetime.fromisoformat(header["date"])
    message = {
        "header": header,
        "msg_id": header["msg_id"],
        "msg_type": header["msg_type"],
        "parent_header": parent,
        "metadata": metadata,
        "content": content,
        "buffers": [],
    }
    return Request(idents, parts[0], message)


async def run(kernel: Any, request: Request) -> None:
    """Run the cell, and send its reply."""
    session, message = kernel.session, request.message
    asked, content = message["msg_id"], message["content"]
    kernel.set_parent(request.idents, message, channel="shell")
    session.begin_brief(asked)
    reply = await kernel.do_execute(
        content["code"],
        silent=False,
        store_history=content.get("store_history", True),
        allow_stdin=bool(content.get("allow_stdin")),
        cell_meta=message["metadata"],
    )
    value, published = session.end_brief()
    told = {**kernel.used(), "published": published}
    if value is not None:
        told["result"] = value
    parts = [
        pack(session.msg_header("execute_reply")),
        request.header,
        pack({"replsvc": told}),
        pack(reply),
    ]
    compat.send_now(kernel.shell_stream, [*request.idents, DELIM, session.sign(parts), *parts])
