"""An environment's fork server over time: started when first needed, replaced when it dies.

Live kernels do not notice that: they are held by descriptors, and the keeper above the server lives
on. Server and keeper end with us: they hold the other ends of what we hold.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.forked import ForkedProcess
from replsvc_kernels.backends.process import check_python
from replsvc_kernels.backends.surroundings import kernel_environment
from replsvc_kernels.kernel import LaunchError, LaunchSpec, LaunchTimeout
from replsvc_kernels.messages import Exit
from replsvc_kernels.sandbox.environment import read_only_paths
from replsvc_kernels.sandbox.session_root import TMP, WORK

DIRECTORY = Path(__file__).parent.parent
# Ids from here on are for sessions' users, as root: far above what systems give to anybody.
FIRST_UID = 1_879_048_192


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """An environment's fork server: its Python, what it imports ahead, and its variables.

    `sessions` is the directory with the sessions' directories (`NAME/work` and `NAME/run`), which
    all servers of a coordinator share; `staging` an empty directory of this server's own. `how` is
    one of `sandbox.namespaces`: how sessions get their ids.
    """

    python: str
    sessions: str
    staging: str
    how: str
    start_timeout_s: float = 60.0
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layers:
    """What a server could set up: Landlock's ABI (0: none), whether each session has an id."""

    landlock: int
    own_ids: bool


class ForkServer:
    """See the module. `run` in a nursery keeps it; `fork` and `layers` start it if need be."""

    def __init__(self, spec: ServerSpec) -> None:
        self._spec = spec
        self._numbers = 0
        self._control: socket.socket | None = None
        self._layers = Layers(0, own_ids=False)
        self._forking: dict[int, trio.Event] = {}
        self._answers: dict[int, tuple[int, int] | str] = {}
        self._processes: dict[int, ForkedProcess] = {}
        self._wanted, self._changed = trio.Event(), trio.Event()
        self._failure: LaunchError | LaunchTimeout | None = None
        self.pid: int | None = None

    # The server's process

    async def run(self) -> None:
        """Start the server when it is wanted, and again when it has died and is wanted."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._one_server()
            except (LaunchError, LaunchTimeout) as error:
                self._failure = error
            finally:
                self._control = self.pid = None
                for event in self._forking.values():
                    event.set()
                self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _one_server(self) -> None:
        python = check_python(self._spec.python)
        config = await self._config(python)
        with ExitStack() as stack:
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(control.close)
            control.setblocking(False)
            # The keeper ends when the last writer of this pipe does: we are the only one.
            held, hold = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, hold)
            with theirs:
                try:
                    socket.send_fds(control, [json.dumps(config).encode()], [held])
                finally:
                    os.close(held)
                server = await self._spawn(python, theirs.fileno())
            try:
                await self._hear(control)
            finally:
                with trio.CancelScope(shield=True):
                    # With our ends closed, keeper and kernels end by themselves.
                    stack.close()
                    server.kill()
                    await server.wait()

    async def _spawn(self, python: str, fd: int) -> trio.Process:
        launch = LaunchSpec(workspace=WORK, python=python, env=self._spec.env)
        try:
            return await trio.lowlevel.open_process(
                [python, str(DIRECTORY / "forkserver"), str(fd)],
                env={**kernel_environment(launch, python), "TMPDIR": TMP},
                cwd="/",
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the fork server can't be started: {error}") from error

    async def _config(self, python: str) -> dict[str, Any]:
        try:
            limit = self._spec.start_timeout_s
            paths = await trio.to_thread.run_sync(read_only_paths, python, limit)
        except TimeoutError as error:
            raise LaunchTimeout(str(error)) from error
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise LaunchError(f"{python} can't be shown to sessions: {error}") from error
        return {
            "how": self._spec.how,
            "preload": self._spec.preload,
            "sessions": self._spec.sessions,
            "staging": self._spec.staging,
            "paths": [*paths, str(DIRECTORY)],
            "first_uid": FIRST_UID,
        }

    async def _hear(self, control: socket.socket) -> None:
        ready: dict[str, Any] = {}
        with trio.move_on_after(self._spec.start_timeout_s) as start:
            ready, _ = await _receive(control)
        if start.cancelled_caught:
            raise LaunchTimeout(
                f"the fork server was not ready after {self._spec.start_timeout_s:g} s"
            )
        if not ready.get("ready"):
            raise LaunchError(
                f"the fork server can't start: {ready.get('error', 'it ended without a word')}"
            )
        self._layers = Layers(int(ready["landlock"]), bool(ready["own_ids"]))
        self._control, self.pid = control, ready.get("pid")
        self._change()
        while True:
            packet, fds = await _receive(control)
            if not packet:
                return
            if "forked" in packet:
                self._answer(packet["forked"], (fds[0], fds[-1]))
            elif "refused" in packet:
                self._answer(packet["refused"], str(packet.get("error")))
            elif (process := self._processes.get(packet.get("exited", -1))) is not None:
                process.report(Exit(packet.get("code"), packet.get("signal")))

    def _answer(self, number: int, answer: tuple[int, int] | str) -> None:
        event = self._forking.get(number)
        if event is not None:
            self._answers[number] = answer
            event.set()
        elif not isinstance(answer, str):
            # Whoever asked was cancelled meanwhile.
            for fd in set(answer):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                os.close(fd)

    # What others ask of it

    async def layers(self) -> Layers:
        """What the server could set up. Raises `LaunchError` when it can't start."""
        await self._running()
        return self._layers

    async def _running(self) -> socket.socket:
        while self._control is None:
            self._failure = None
            changed = self._changed
            self._wanted.set()
            await changed.wait()
            if self._failure is not None:
                raise self._failure
        return self._control

    async def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> ForkedProcess:
        """A new kernel's process; whoever asks runs it. Raises `LaunchError`."""
        control = await self._running()
        self._numbers += 1
        number = self._numbers
        event = self._forking[number] = trio.Event()
        try:
            body = json.dumps({"fork": number, **request}).encode()
            try:
                socket.send_fds(control, [body], list(fds))
            except OSError as error:
                raise LaunchError(f"the fork server does not take requests: {error}") from error
            await event.wait()
        finally:
            del self._forking[number]
        answer = self._answers.pop(number, "it ended")
        if isinstance(answer, str):
            raise LaunchError(f"the fork server could not fork: {answer}")
        process = self._processes[number] = ForkedProcess(
            *answer,
            interrupt=lambda: self._interrupt(number),
            forget=lambda: self._forget(number),
        )
        return process

    def _forget(self, number: int) -> None:
        self._processes.pop(number, None)

    def _interrupt(self, number: int) -> bool:
        if self._control is None:
            return False
        try:
            self._control.send(json.dumps({"interrupt": number}).encode())
        except OSError:
            return False
        return True


async def _receive(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A packet of the server's with its descriptors; an empty one when it has ended."""
    await trio.lowlevel.wait_readable(control)
    try:
        data, fds, _, _ = socket.recv_fds(control, 64 * 1024, 4, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return {}, []
    return (json.loads(data) if data else {}), list(fds)
