"""One session, one cell: streamed to standard output and error as it runs, then gone."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from replsvc.calls import Call, CallRequest, Event
from replsvc.cli.logs import log_to_stderr
from replsvc.cli.screen import (
    BROKEN_PIPE,
    BY_SIGNAL,
    FAILED,
    INTERRUPTED,
    KILLED,
    OK,
    RAISED,
    TIMEOUT,
    USAGE,
    heeded,
    say,
)
from replsvc.cli.terminal import Terminal
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import AlreadyAnsweredError, InvalidInputError, ReplsvcError
from replsvc.output import mime_text
from replsvc.run import Run
from replsvc.session import Session
from replsvc.session_values import Mount
from replsvc_kernels.background import background_nursery

STDOUT, STDERR = 1, 2
ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Job:
    """What to run and how; `fields` are those of `SessionRequest`."""

    config: Config
    code: str
    fields: dict[str, Any]
    mounts: Sequence[Mount] = ()
    as_json: bool = False


def run_job(job: Job) -> int:
    """Run it to its end; returns the status to exit with. Raises `ReplsvcError`."""
    log_to_stderr()
    return trio.run(_OneShot(job).run)


class _Unwritable(Exception):  # noqa: N818 - it says what happened
    """Standard output takes nothing more."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.status = BROKEN_PIPE if error.errno == errno.EPIPE else FAILED


class _Screen:
    """Standard output and error, byte for byte; a slow reader holds up nobody but itself."""

    def __init__(self) -> None:
        self._mid_line = {STDOUT: False, STDERR: False}
        self._stderr_gone = False

    async def write(self, descriptor: int, data: bytes) -> None:
        """Write all of `data`. Raises `_Unwritable` when standard output is gone."""
        if not data or (descriptor == STDERR and self._stderr_gone):
            return
        try:
            await trio.to_thread.run_sync(_write, descriptor, data, abandon_on_cancel=True)
        except OSError as error:
            if descriptor == STDOUT:
                raise _Unwritable(error) from None
            self._stderr_gone = True
        self._mid_line[descriptor] = not data.endswith(b"\n")

    async def line(self, descriptor: int, text: str) -> None:
        """Write `text` on lines of its own."""
        start = "\n" if self._mid_line[descriptor] else ""
        whole = f"{start}{text}" if text.endswith("\n") else f"{start}{text}\n"
        await self.write(descriptor, whole.encode("utf-8", "backslashreplace"))


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # whoever gave it to us made it non-blocking
            select.select([], [descriptor], [])


class _OneShot:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._screen = _Screen()
        # Who wants one JSON object is a program, and answers nothing.
        self._terminal = None if job.as_json else Terminal.of_stdin()
        self._asking = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._session: Session | None = None
        self._interrupts = 0
        self._ended_by: int | None = None

    async def run(self) -> int:
        """See `run_job`."""
        with trio.open_signal_receiver(*heeded(signal.SIGINT, *ENDING)) as signals:
            try:
                async with background_nursery() as nursery:
                    nursery.start_soon(self._watch, signals, nursery)
                    with self._scope:
                        return await self._work()
            except ReplsvcError:
                # What fails because it is being ended is no failure.
                if self._ended_by is None:
                    raise
            assert self._ended_by is not None
            return BY_SIGNAL + self._ended_by

    async def _watch(self, signals: AsyncIterator[int], nursery: trio.Nursery) -> None:
        async for number in signals:
            if number == signal.SIGINT and self._session is not None and self._interrupts < 2:
                self._interrupts += 1
                nursery.start_soon(self._interrupt, self._session, self._interrupts > 1)
            else:
                self._end(number)

    async def _interrupt(self, session: Session, force: bool) -> None:
        result = await session.interrupt(force=force)
        if not result.delivered:
            # The code has not started, or it has ended and its output waits for a slow reader.
            self._end(signal.SIGINT)

    def _end(self, number: int) -> None:
        if self._ended_by is not None:
            # It is ending already, and somebody is tired of waiting. What watches over the kernel
            # ends it when we are gone.
            say("told to end at once: whatever runs still is ended by force.")
            os._exit(BY_SIGNAL + number)
        self._ended_by = number
        self._scope.cancel()

    async def _work(self) -> int:
        job = self._job
        async with (
            Coordinator(job.config) as coordinator,
            coordinator.session(mounts=job.mounts, **job.fields) as session,
        ):
            self._session = session
            if session.isolation_missing:
                say(f"isolation is partial, without {'; '.join(session.isolation_missing)}.")
            try:
                attached = self._terminal is not None
                run = await session.submit(CallRequest(input={"code": job.code}, stdin=attached))
                if not job.as_json:
                    await self._stream(session, run)
                call = await run.wait()
                if job.as_json:
                    text = json.dumps(call.model_dump(mode="json"))
                    await self._screen.line(STDOUT, text)
                else:
                    await self._conclude(call)
            except _Unwritable as gone:
                if gone.status != BROKEN_PIPE:
                    say(f"standard output can't be written: {gone}.")
                return gone.status
            finally:
                # From now on Ctrl-C has nothing to interrupt but the closing.
                self._session = None
        return self._status(call)

    async def _stream(self, session: Session, run: Run) -> None:
        after = await run.started()
        async with background_nursery() as nursery:
            async for events in session.log.follow(session.id, after, call_id=run.id):
                for event in events:
                    if event.kind == "call_finished":
                        return
                    if event.kind == "output":
                        await self._show(event)
                    elif event.kind == "input_request":
                        self._asking = trio.CancelScope()
                        nursery.start_soon(self._ask, session, event.data, self._asking)
                    elif event.kind == "status" and "outcome" in event.data:
                        self._asking.cancel()

    async def _ask(self, session: Session, asked: dict[str, Any], scope: trio.CancelScope) -> None:
        """Ask at the terminal until there is an answer, or nobody waits for one any more."""
        assert self._terminal is not None
        with scope:
            while True:
                text = await self._terminal.ask(asked["prompt"], secret=asked["password"])
                try:
                    return await session.answer(asked["id"], text)
                except InvalidInputError as error:
                    say(str(error))
                except AlreadyAnsweredError:
                    return None  # the code has gone on meanwhile

    async def _show(self, event: Event) -> None:
        kind = event.data.get("type")
        if kind == "stream":
            descriptor = STDERR if event.data.get("name") == "stderr" else STDOUT
            await self._screen.write(descriptor, event.blob or b"")
        elif kind in ("execute_result", "display_data", "update_display_data"):
            text = mime_text(event.data.get("data") or {})
            if text is not None:
                await self._screen.line(STDOUT, text)

    async def _conclude(self, call: Call) -> None:
        """What people should know of the end besides the output."""
        if call.error is not None and call.status == "error":
            said = "\n".join(call.error.traceback) or f"{call.error.ename}: {call.error.evalue}"
            await self._screen.line(STDERR, said)
        elif call.status != "ok":
            why = f": {call.cause.message}" if call.cause is not None else ""
            await self._screen.line(STDERR, f"replsvc: {call.status}{why}.")
        if isinstance(hint := call.details.get("hint"), str):
            await self._screen.line(STDERR, f"replsvc: {hint}")
        if call.output.dropped_bytes:
            await self._screen.line(
                STDERR,
                f"replsvc: {call.output.dropped_bytes} bytes of output are left out. "
                "limits.max_log_bytes bounds them.",
            )

    def _status(self, call: Call) -> int:
        if call.status == "ok":
            return OK
        if self._interrupts and call.status in ("interrupted", "killed", "cancelled"):
            return INTERRUPTED
        if call.cause is not None and call.cause.kind == "invalid_input":
            return USAGE
        known = {"timeout": TIMEOUT, "killed": KILLED, "interrupted": INTERRUPTED}
        return known.get(call.status, RAISED)
