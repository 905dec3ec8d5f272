"""Tools that a cell's code calls: each is a call of the session's, by the way that all calls go.

The code waits for the call's end and gets what the handler returned, whole and as plain data; what
fails, refuses or stops it is a `ToolError` there. A call that the code waits for no more, or whose
cell has ended, is cancelled.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol

import trio

from replsvc.calls import Call, CallRequest
from replsvc.errors import ReplsvcError
from replsvc.extension.results import Checked
from replsvc.output import LONG_CHARS
from replsvc.policy import PolicyHost
from replsvc.run import Run
from replsvc.talk import CallTool, Clock, ToolAnswer
from replsvc_kernels.messages import ToolRequest, ToolSpec

CALL_BYTES = 1024
"""What the log has of a call besides its input and result, roughly."""


class CallsTools(PolicyHost, Protocol):
    """What code's calls need of their session."""

    async def submit(self, request: CallRequest) -> Run:
        """Begin a call; the run that is current is its parent."""

    async def result(self, run: Run) -> Call:
        """What it becomes; cancelling this cancels the call, and waits for its end."""


def tools_of(run: Run, host: CallsTools) -> tuple[tuple[ToolSpec, ...], CallTool | None]:
    """What the code of the call's cell may call, and who takes its calls; nothing, or nobody."""
    specs = host.runtime.specs
    return specs, _CodeCalls(run, host).call if specs else None


class _CodeCalls:
    """The calls of one cell's code. All of them together have the room of its own log."""

    def __init__(self, run: Run, host: CallsTools) -> None:
        self._run, self._host = run, host
        self._room = host.limits.max_log_bytes

    async def call(self, request: ToolRequest, clock: Clock) -> ToolAnswer:
        """See `talk.CallTool`. Never raises what befalls the call."""
        self._room -= request.size + CALL_BYTES
        if self._room < 0:
            most = self._host.limits.max_log_bytes
            why = f"the tools' calls of this cell have filled their log of {most} bytes; "
            return _error("LogFull", why + "end the cell, and go on in another")
        assert self._run.log is not None
        # What the code did before stands before it, and whoever follows sees that it waits.
        self._run.log.announce()
        # A thread's call does not keep the cell from going on.
        with nullcontext() if request.background else clock.paused():
            try:
                child = await self._host.submit(
                    CallRequest(tool=request.name, input=dict(request.arguments))
                )
                call = await self._host.result(child)
            except ReplsvcError as error:
                return _error(type(error).__name__, str(error))
            returned, child.returned = child.returned, None
            if call.status != "ok":
                return _failure(call)
            self._room -= call.cost.bytes + call.output.total_bytes
            return ToolAnswer(await self._plain(returned or Checked()))

    async def _plain(self, result: Checked) -> Any:
        """A result as JSON: the structured value, else the text, with images a list of parts."""
        redactor = self._host.redactor
        if result.images:
            texts = [{"type": "text", "text": redactor.text(text)} for text in result.texts]
            return texts + await trio.to_thread.run_sync(_images, result)
        if result.value is not None:
            return redactor.json(result.value)
        if not result.texts:
            return None
        text = "\n".join(result.texts)
        if redactor and len(text) > LONG_CHARS:
            return await trio.to_thread.run_sync(redactor.text, text)
        return redactor.text(text)


def _images(result: Checked) -> list[dict[str, str]]:
    return [
        {
            "type": "image",
            "mime_type": image.mime_type,
            "data": base64.b64encode(image.data).decode("ascii"),
        }
        for image in result.images
    ]


_TYPES: Mapping[str, str] = {
    "timeout": "ToolTimeout",
    "interrupted": "ToolInterrupted",
    "cancelled": "ToolCancelled",
    "killed": "ToolKilled",
}


def _failure(call: Call) -> ToolAnswer:
    """Why a call failed, in as many words as the agent would read."""
    if call.error is not None:
        said = f": {call.error.evalue}" if call.error.evalue else ""
        return _error(call.error.ename, f"{call.error.ename}{said}")
    if call.cause is not None and call.cause.kind == "invalid_input":
        problems = call.cause.message.removeprefix(f"Invalid input for {call.tool}: ")
        return _error("InvalidInput", f"invalid input: {problems}")
    if call.cause is not None and call.cause.kind == "veto":
        return _error("ToolBlocked", call.cause.message)
    return _error(_TYPES.get(call.status, "ToolError"), call.text)


def _error(kind: str, message: str) -> ToolAnswer:
    return ToolAnswer(error={"type": kind, "message": message})
