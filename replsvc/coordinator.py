"""The coordinator: sessions by id, opened, found, culled, stopped.

It owns the event log and one nursery in which each session is a task; it is the only place that
catches a session's crash, so that no session can take another along.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog
import trio
from pydantic import ValidationError

from replsvc.backends import Backends
from replsvc.call_table import CallTable
from replsvc.calls import Artifact, Call
from replsvc.changes import Notices
from replsvc.config import Config
from replsvc.errors import (
    ArtifactNotFoundError,
    CallNotFoundError,
    ConflictError,
    ExtensionDisposeError,
    InvalidInputError,
    QuotaExceededError,
    ReplsvcError,
    ServiceStoppingError,
    SessionClosedError,
    SessionNotFoundError,
    StorageError,
)
from replsvc.extension.available import Available
from replsvc.lasting import Lasting, SessionLeft, end_calls, sessions_left
from replsvc.opening import Opener
from replsvc.runtime_dir import runtime_dir
from replsvc.session import Session
from replsvc.session_parts import SessionParts
from replsvc.session_values import Mount, SessionRequest, first_problem
from replsvc.store.artifacts import ArtifactFiles
from replsvc.store.log import EventLog
from replsvc.store.records import SessionRecord
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.background import background_nursery
from replsvc_kernels.sandbox import removal
from replsvc_kernels.workspaces import Workspaces

log = structlog.get_logger("replsvc")


def _fingerprint(request: SessionRequest, extensions: Sequence[object] | None) -> str:
    body = request.model_dump(mode="json")
    body["in_process"] = None if extensions is None else [repr(item) for item in extensions]
    return json.dumps(body, sort_keys=True)


class _Opening:
    """A session being opened; who asks for the same id meanwhile waits for the same outcome."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.done = trio.Event()
        self.session: Session | None = None
        self.error: ReplsvcError | None = None


class Coordinator:
    """Use as an async context manager; leaving it ends every session.

        async with Coordinator(Config(isolation="none")) as c, c.session() as s:
            call = await s.run("1 + 1")

    `backend` starts the kernels of all sessions, whatever the settings say; it isolates nothing.
    That is for tests: `replsvc.testing` gives a fake one.

    Raises `StorageError` when the data directory can't be used, `ExtensionError` for configured
    extensions that can't be loaded.
    """

    def __init__(self, config: Config | None = None, *, backend: Backend | None = None) -> None:
        self.config = config or Config()
        self._backend = backend
        self.available = Available(())
        self._sessions: dict[str, Session] = {}
        self._opening: dict[str, _Opening] = {}
        self._marks: dict[str, str] = {}
        self._stopping = False
        self._scope: Any = None

    async def __aenter__(self) -> Coordinator:
        self._scope = self._open()
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        result: bool | None = await self._scope.__aexit__(kind, value, traceback)
        return result

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        self.available = Available(self.config.extensions)
        runtime = runtime_dir()
        self._runtime = await trio.to_thread.run_sync(runtime.__enter__)
        notices = Notices()
        root = self.config.data or self._runtime / "data"
        self._workspaces = root / "workspaces"
        workspaces = Workspaces(self._workspaces, self.config.limits.workspace_bytes)
        self._backends = Backends(self.config, self._runtime, self._workspaces, self._backend)
        try:
            async with EventLog.open(root, durability=self.config.durability) as self.log:
                self._files = ArtifactFiles(self.log.directory)
                self._opener = Opener(
                    self.config,
                    self.available,
                    self._backends,
                    workspaces,
                    self.log,
                    notices,
                    self._files,
                    (root, self._runtime),
                )
                # Sessions' users pass through it, each to its own directory.
                await trio.to_thread.run_sync(_make_passable, self._workspaces)
                async with (
                    workspaces.running(),
                    self._backends.running(),
                    background_nursery() as self._nursery,
                ):
                    try:
                        await self._go_on_from_an_earlier_run()
                        yield
                    finally:
                        with trio.CancelScope(shield=True):
                            await self.stop()
        finally:
            notices.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(runtime.__exit__, None, None, None)

    async def _go_on_from_an_earlier_run(self) -> None:
        """Sessions of a coordinator that was killed: adopt what survives, say that others ended."""
        lasting = self._backends.lasting
        left = sessions_left(await lasting.find())
        for record in await self.log.sessions(states=("starting", "idle", "busy")):
            one = left.pop(record.id, None)
            if one is not None:
                if record.id in lasting.left and lasting.pid_of(record.id) == one.pid:
                    try:
                        await self._adopt(record, one)
                    except ReplsvcError:
                        log.exception("session can't be taken over", session=record.id)
                    else:
                        continue
                if one.image is not None:
                    os.close(one.image)
            if record.id in lasting.left:
                await lasting.refuse(record.id)
            await self._end(record)
        for name in lasting.left:
            await lasting.refuse(name)

    async def _end(self, record: SessionRecord) -> None:
        await end_calls(self.log, record.id)
        await self.log.update_session(record.id, state="stopped")
        if self._backends.lasting.held:
            Lasting(self._backends.lasting, record.id, "", ()).drop()
        await trio.to_thread.run_sync(removal.discard, str(self._workspaces / record.id))

    async def _adopt(self, record: SessionRecord, left: SessionLeft) -> None:
        """Take over a session with its kernel and its calls. Raises what prevents it."""
        request = SessionRequest.model_validate(record.spec)
        parts = await self._opener.parts(record.id, request, None, left.mounts, left.mark, left)
        session = Session(parts)
        session.created_at = record.created_at
        await self._nursery.start(self._keep, session)
        self._sessions[record.id], self._marks[record.id] = session, left.mark
        await self.log.update_session(record.id, state="idle")
        await session.go_on(left.calls)

    async def stop(self, *, keep_survivors: bool = False) -> None:
        """End every session and refuse new ones; returns when nothing is left.

        With `keep_survivors` those that survive a restart are left to the next coordinator of this
        data directory, with their running calls; who waits here for one hears that it has ended.
        """
        self._stopping = True
        keep_survivors = keep_survivors and any(one.lasting for one in self._sessions.values())
        async with trio.open_nursery() as nursery:
            if keep_survivors:
                # First: however this ends, they are not ended with it.
                self._backends.lasting.leave()
            for session_id, session in list(self._sessions.items()):
                if keep_survivors and session.lasting is not None:
                    nursery.start_soon(self._let_go, self._sessions.pop(session_id))
                else:
                    nursery.start_soon(self._close, session_id)

    async def _let_go(self, session: Session) -> None:
        self._marks.pop(session.id, None)
        with trio.CancelScope(shield=True):
            session.scope.cancel()
            await session.closed.wait()
            await session.leave_workspace()
            self.log.forget(session.id)

    # Opening

    async def check(self) -> tuple[str, ...]:
        """Whether sessions can be isolated as configured; returns the layers that are missing.

        From then on kernels are made ahead for the usual session, as the settings say. Raises
        `IsolationUnavailableError`, `BackendUnavailableError`, `StartupTimeoutError`.
        """
        return await self._opener.expect()

    @asynccontextmanager
    async def session(
        self,
        *,
        extensions: Sequence[object] | None = None,
        mounts: Sequence[Mount] = (),
        **fields: Any,
    ) -> AsyncIterator[Session]:
        """A session for the body, closed at its end. `fields` are those of `SessionRequest`.

        `extensions` are `Extension`s, modules, or `(module, opts)`; None takes those that the
        settings name. Raises as `open`, and as `close` after a body that did not raise.
        """
        try:
            request = SessionRequest(**fields)
        except ValidationError as error:
            raise InvalidInputError(f"session: {first_problem(error)}") from error
        session = await self.open(request, extensions=extensions, mounts=mounts)
        is_clean = False
        try:
            yield session
            is_clean = True
        finally:
            with trio.CancelScope(shield=True):
                not_disposed = await self._close(session.id)
            if is_clean and not_disposed is not None:
                raise not_disposed

    async def open(
        self,
        request: SessionRequest,
        *,
        extensions: Sequence[object] | None = None,
        mounts: Sequence[Mount] = (),
    ) -> Session:
        """Open a session and wait until its kernel is ready and set up.

        With an id it is idempotent: the same request gives the same session, also while it is being
        opened. Raises `ConflictError` for another request with that id, `ExtensionError`,
        `ExtensionSetupError`, `BackendUnavailableError`, `StartupTimeoutError`,
        `QuotaExceededError`, `StorageError`; then nothing is left behind.
        """
        if self._stopping:
            raise ServiceStoppingError("the service is stopping.", hint="Try another, or later.")
        session_id = request.id or f"s_{secrets.token_urlsafe(16)}"
        mark = _fingerprint(request, extensions)
        if (known := self._sessions.get(session_id)) is not None:
            _check_same(session_id, mark, self._marks[session_id])
            return known
        if (opening := self._opening.get(session_id)) is not None:
            _check_same(session_id, mark, opening.mark)
            await opening.done.wait()
            if opening.session is None:
                raise opening.error or SessionClosedError("opening was cancelled; try again.")
            return opening.session
        if len(self._sessions) + len(self._opening) >= self.config.max_sessions:
            raise QuotaExceededError(
                f"{self.config.max_sessions} sessions are open, the most this service allows.",
                hint="Close one, or wait until one is idle for long enough.",
            )
        opening = self._opening[session_id] = _Opening(mark)
        try:
            parts = await self._opener.parts(session_id, request, extensions, tuple(mounts), mark)
            opening.session = await self._start(parts, mark)
        except ReplsvcError as error:
            opening.error = error
            raise
        else:
            return opening.session
        finally:
            del self._opening[session_id]
            opening.done.set()

    async def _start(self, parts: SessionParts, mark: str) -> Session:
        session = Session(parts)
        record = SessionRecord(
            id=parts.id,
            tenant=parts.tenant,
            state="starting",
            spec=parts.request.model_dump(mode="json"),
            created_at=session.created_at,
            updated_at=session.created_at,
        )
        lives = False
        try:
            await session.fill_workspace()
        except BaseException:
            await session.remove_workspace()
            raise
        try:
            created = self.log.begin_session(record)
            await self._nursery.start(self._keep, session)
            lives = True
            await created.wait()
            await self.log.update_session(parts.id, state="idle")
        except BaseException:
            with trio.CancelScope(shield=True):
                if lives:
                    # Nobody else knows it yet, to end it.
                    session.scope.cancel()
                    await session.closed.wait()
                await self._forget(session, delete=True)
            raise
        self._sessions[parts.id], self._marks[parts.id] = session, mark
        return session

    async def _keep(
        self, session: Session, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run a session; its crash ends it, and is told here and to whoever waits on it."""
        started = False

        class Status:
            def started(self, value: None = None) -> None:
                nonlocal started
                started = True
                task_status.started(value)

        with trio.CancelScope() as session.scope:
            try:
                await session.live(task_status=Status())
            except ReplsvcError:
                if not started:
                    raise
                log.exception("session ended", session=session.id)
            except Exception:
                log.exception("session crashed", session=session.id)
                if not started:
                    raise
        if self._sessions.pop(session.id, None) is not None:
            # Nobody closed it: it ended by itself.
            self._marks.pop(session.id, None)
            await self._forget(session, delete=False)

    # Finding and closing

    def get(self, session_id: str) -> Session:
        """The open session with this id; raises `SessionNotFoundError`."""
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFoundError(
                f"there is no session {session_id}.", hint="Open one with POST /v1/sessions."
            ) from None

    async def find_call(self, session_id: str, call_id: str) -> Call:
        """A call of any session, also of one that is closed: then only those that ended.

        Raises `SessionNotFoundError`, `CallNotFoundError`, `StorageError`.
        """
        if session_id in self._sessions:
            return await self._sessions[session_id].find(call_id)
        await self.log.session(session_id)
        return await CallTable(session_id, self.log).find(call_id)

    async def artifact(self, session_id: str, artifact_id: str) -> tuple[Artifact, Path]:
        """A file that a cell made, and where its content is; the session may be closed.

        Raises `ArtifactNotFoundError` also for one that was not kept, `SessionNotFoundError`,
        `StorageError`.
        """
        call_id, _, _ = artifact_id.rpartition(".")
        with suppress(CallNotFoundError):
            call = await self.find_call(session_id, call_id)
            for one in call.artifacts:
                if one.id == artifact_id and one.kept:
                    return one, self._files.path(session_id, one.id)
        raise ArtifactNotFoundError(
            f"session {session_id} has no artefact {artifact_id}.",
            hint="A call's output.artifact names its log, its artifacts the files that were kept.",
        )

    def knows(self, session_id: str) -> bool:
        """Whether a session with this id is open or being opened."""
        return session_id in self._sessions or session_id in self._opening

    def list(self) -> tuple[Session, ...]:
        """The open sessions, oldest first."""
        return tuple(self._sessions.values())

    async def close(self, session_id: str) -> None:
        """End a session: its calls get results, its processes, sockets and files go.

        Returns when nothing is left but its log. Raises `SessionNotFoundError`, and once all of it
        is gone `ExtensionDisposeError`, where an extension could not dispose of its resource.
        """
        self.get(session_id)
        if (not_disposed := await self._close(session_id)) is not None:
            raise not_disposed

    async def _close(self, session_id: str) -> ExtensionDisposeError | None:
        """Close it, if it is there; gives what an extension could not dispose of."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return None
        self._marks.pop(session_id, None)
        with trio.CancelScope(shield=True):
            await session.stop_work()
            session.scope.cancel()
            await session.closed.wait()
            await self._forget(session, delete=False)
        return session.not_disposed

    async def _forget(self, session: Session, *, delete: bool) -> None:
        if session.lasting is not None:
            session.lasting.drop()
        await session.remove_workspace()
        try:
            if delete:
                await self.log.delete_session(session.id)
            else:
                await self.log.update_session(session.id, state="closed")
        except StorageError as error:
            log.warning("session's end could not be recorded", session=session.id, error=str(error))
        self.log.forget(session.id)


def _make_passable(path: Path) -> None:
    """Make a directory that others may pass through and not list. Raises `StorageError`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711)
    except OSError as error:
        raise StorageError(
            f"{path} can't be made: {error.strerror}.", hint="Look at the disk and its permissions."
        ) from error


def _check_same(session_id: str, mark: str, theirs: str) -> None:
    if mark != theirs:
        raise ConflictError(
            f"session {session_id} exists with other settings.",
            hint="Use another id, or send the same body.",
        )
