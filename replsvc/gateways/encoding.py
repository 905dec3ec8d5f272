"""Values as bytes for clients: the one place where calls and events become JSON and SSE."""

from __future__ import annotations

import json

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from replsvc.calls import Event


def to_json(value: BaseModel) -> bytes:
    """The value's JSON.

    Lone surrogates, which a program may put into its own exceptions, leave as escapes.
    """
    try:
        return value.__pydantic_serializer__.to_json(value)
    except PydanticSerializationError:
        return json.dumps(value.model_dump(mode="json"), separators=(",", ":")).encode()


def event_json(event: Event) -> bytes:
    """`{seq, kind, call_id, at, data}`; a stream's bytes are `data.text`.

    What of them isn't UTF-8 is shown as escapes; the bytes themselves are in the call's log.
    """
    if event.blob is not None:
        text = event.blob.decode("utf-8", "backslashreplace")
        event = event.model_copy(update={"data": {**event.data, "text": text}})
    return to_json(event)


def sse(event: Event) -> bytes:
    """The event as a server-sent one; its `id` is what `Last-Event-ID` says to go on after it."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (
        event.seq,
        event.kind.encode(),
        event_json(event),
    )
