"""An environment's fork server over time: started when first needed, replaced when it dies.

Live kernels do not notice that: they are held by descriptors, and the keeper above the server lives
until the last of them has ended. Server and keeper end with us: they hold the other ends of what we
hold.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.forked import ForkedProcess, host_pid
from replsvc_kernels.backends.keeper import Keeper
from replsvc_kernels.backends.session_ids import FIRST_UID, SessionIds
from replsvc_kernels.backends.surroundings import check_python, kernel_environment
from replsvc_kernels.kernel import (
    EnvironmentUnreadable,
    GuestUntested,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
)
from replsvc_kernels.messages import Exit
from replsvc_kernels.sandbox.environment import read_only_paths
from replsvc_kernels.sandbox.session_root import WORK

DIRECTORY = Path(__file__).parent.parent
# Requests on their way at a time: the socket holds that many, and so do the descriptors that may be
# in flight. It forks one after the other in any case.
AT_A_TIME = 16
# How long a cancelled start waits for word of what it started.
ANSWER_S = 1.0
# What a server that could not start gets to end by itself.
ENDING_S = 1.0
# Mounts besides pipes and control groups; the server's end takes more than these together.
MOST_DESCRIPTORS = 200


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """An environment's fork server: its Python, what it imports ahead, and its variables.

    `sessions` is the directory with the sessions' directories (`NAME/work` and `NAME/run`), which
    all servers of a coordinator share; `staging` an empty directory of this server's own. `ids` are
    those that its sessions get. Without `guest` it imports neither that nor ipykernel, and forks to
    execute programs.
    """

    python: str
    sessions: str
    staging: str
    ids: SessionIds
    start_timeout_s: float = 60.0
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    guest: bool = True


@dataclass(frozen=True, slots=True)
class Layers:
    """What a server could set up: Landlock's ABI (0: none), whether each session has an id.

    `binds` is whether a kernel can be given its workspace later.
    """

    landlock: int
    own_ids: bool
    binds: bool = False


class ServerEnded(LaunchError):  # noqa: N818 - it says what happened
    """The server died while it was asked: its successor has not been."""


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
        self._binding: dict[int, trio.Event] = {}
        self._bound: dict[int, str] = {}
        self._keeper: Keeper | None = None
        self._wanted, self._changed = trio.Event(), trio.Event()
        self._room = trio.CapacityLimiter(AT_A_TIME)
        self._failure: LaunchError | LaunchTimeout | None = None
        self.pid: int | None = None
        self.gone = trio.Event()
        """Set when the present server has ended; the next one has another."""

    # The server's process

    async def run(self) -> None:
        """Start the server when it is wanted, and again when it has died and is wanted."""
        async with trio.open_nursery() as keepers:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                try:
                    await self._one_server(keepers)
                except (LaunchError, LaunchTimeout) as error:
                    self._failure = error
                finally:
                    self._control = self._keeper = self.pid = None
                    self.gone.set()
                    for event in (*self._forking.values(), *self._binding.values()):
                        event.set()
                    self._change()

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _one_server(self, keepers: trio.Nursery) -> None:
        python = check_python(self._spec.python)
        config = await self._config(python)
        with ExitStack() as stack:
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(control.close)
            control.setblocking(False)
            keeper = self._new_keeper()
            stack.callback(keeper.give_back)
            with theirs:
                try:
                    socket.send_fds(control, [json.dumps(config).encode()], [keeper.held])
                finally:
                    os.close(keeper.held)
                parent = await self._spawn(python, theirs.fileno())
            try:
                above = await self._ready(control)
            except BaseException:
                with trio.CancelScope(shield=True):
                    # With our ends closed it ends by itself, unless it hangs.
                    stack.close()
                    with trio.move_on_after(ENDING_S):
                        await parent.wait()
                    parent.kill()
                    await parent.wait()
                raise
            keepers.start_soon(keeper.watch, above, parent)
            await self._serve(control, keeper, above)

    def _new_keeper(self) -> Keeper:
        return Keeper()

    async def _serve(self, control: socket.socket, keeper: Keeper, _above: int) -> None:
        """Until the server's end: let others ask it, and hear what it says."""
        self._control, self._keeper, self.gone = control, keeper, trio.Event()
        self._change()
        await self._hear(control)

    async def _spawn(self, python: str, fd: int) -> trio.Process:
        launch = LaunchSpec(workspace=WORK, python=python, env=self._spec.env)
        try:
            return await trio.lowlevel.open_process(
                [python, str(DIRECTORY / "forkserver"), str(fd)],
                env={**kernel_environment(launch, python), "TMPDIR": WORK},
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
        ids = await self._spec.ids.find()
        return {
            "how": ids.how,
            "preload": self._spec.preload,
            "guest": self._spec.guest,
            "sessions": self._spec.sessions,
            "staging": self._spec.staging,
            "paths": [*paths, str(DIRECTORY)],
            "first_uid": FIRST_UID,
        }

    async def _ready(self, control: socket.socket) -> int:
        """Wait for the server's first word; returns the pidfd of its keeper."""
        ready: dict[str, Any] = {}
        handles: list[int] = []
        with trio.move_on_after(self._spec.start_timeout_s) as start:
            ready, handles = await _receive(control)
        if start.cancelled_caught:
            raise LaunchTimeout(
                f"the fork server was not ready after {self._spec.start_timeout_s:g} s"
            )
        if ready.get("untested"):
            raise GuestUntested(str(ready.get("error"))[:2_000])
        if ready.get("remedy"):
            raise EnvironmentUnreadable(str(ready.get("error"))[:2_000], str(ready["remedy"]))
        if not ready.get("ready"):
            raise LaunchError(
                f"the fork server can't start: {ready.get('error', 'it ended without a word')}"
            )
        self._layers = Layers(int(ready["landlock"]), bool(ready["own_ids"]), bool(ready["binds"]))
        above, server = handles
        self.pid = host_pid(server)
        os.close(server)
        return above

    async def _hear(self, control: socket.socket) -> None:
        while True:
            packet, fds = await _receive(control)
            if not packet:
                return
            if "forked" in packet:
                self._answer(packet["forked"], (fds[0], fds[-1]))
            elif "refused" in packet:
                self._answer(packet["refused"], str(packet.get("error")))
            elif (waiting := self._binding.get(packet.get("bound", -1))) is not None:
                self._bound[packet["bound"]] = str(packet.get("error", ""))
                waiting.set()
            elif (process := self._processes.get(packet.get("exited", -1))) is not None:
                process.report(Exit(packet.get("code"), packet.get("signal")))

    def _answer(self, number: int, answer: tuple[int, int] | str) -> None:
        event = self._forking.get(number)
        if event is not None:
            self._answers[number] = answer
            event.set()
        elif not isinstance(answer, str):
            # Whoever asked was cancelled meanwhile; with its init everything of it ends.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(answer[1], signal.SIGKILL)
            for fd in set(answer):
                os.close(fd)

    # What others ask of it

    async def layers(self) -> Layers:
        """What the server could set up. Raises `LaunchError` when it can't start."""
        await self._running()
        return self._layers

    @property
    def binds(self) -> bool:
        """Whether it is known that a kernel can be given its workspace later."""
        return self._layers.binds

    async def _running(self) -> socket.socket:
        while self._control is None:
            self._failure = None
            changed = self._changed
            self._wanted.set()
            await changed.wait()
            if self._failure is not None:
                raise self._failure
        return self._control

    async def fork(self, fds: Sequence[int], *, unused: bool = False) -> ForkedProcess:
        """A new kernel's process, given what `forkserver.child` lists; whoever asks runs it.

        One that is `unused` has no workspace until `bind`.
        Raises `LaunchError`, `ServerEnded`.
        """
        if len(fds) > MOST_DESCRIPTORS:
            raise LaunchError(f"{len(fds)} descriptors are more than a session can be given")
        self._numbers += 1
        number = self._numbers
        event = trio.Event()
        try:
            async with self._room:
                keeper = await self._ask({"fork": number, "unused": unused}, fds)
                self._forking[number] = event
                # Cancelled or not: a kernel that we have heard of can be waited for when it is
                # ended. It takes milliseconds, unless the server hangs.
                with trio.move_on_after(ANSWER_S) as soon:
                    soon.shield = True
                    await event.wait()
                if not event.is_set():
                    await event.wait()
        finally:
            self._forking.pop(number, None)
        answer = self._answers.pop(number, None)
        if answer is None:
            raise ServerEnded("the fork server ended while it forked")
        if isinstance(answer, str):
            raise LaunchError(f"the fork server could not fork: {answer}")
        keeper.take()

        def forget() -> None:
            del self._processes[number]
            keeper.give_back()

        process = self._processes[number] = ForkedProcess(
            *answer, interrupt=lambda: self._interrupt(number), forget=forget
        )
        process.number = number
        return process

    async def bind(self, process: ForkedProcess, work: str | int) -> None:
        """Give an unused kernel its workspace: a name below the sessions' directory, or a mount.

        Raises `LaunchError`; then the kernel is good for nothing.
        """
        request: dict[str, Any] = {"bind": process.number}
        fds = [work] if isinstance(work, int) else []
        if isinstance(work, str):
            request["work"] = work
        event = self._binding[process.number] = trio.Event()
        try:
            await self._ask(request, fds)
            await event.wait()
        finally:
            del self._binding[process.number]
        error = self._bound.pop(process.number, "the fork server ended")
        if error:
            raise LaunchError(f"the kernel can't be given its workspace: {error}")

    async def _ask(self, request: Mapping[str, Any], fds: Sequence[int]) -> Keeper:
        """Send a request to the server, or to its successor; returns what holds it."""
        body = json.dumps(request).encode()
        while True:
            control = await self._running()
            keeper = self._keeper
            assert keeper is not None
            try:
                socket.send_fds(control, [body], list(fds))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(control)
            except ConnectionError as error:
                raise ServerEnded("the fork server has ended") from error
            except OSError as error:
                raise LaunchError(f"the fork server does not take requests: {error}") from error
            else:
                return keeper

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
