"""`ReaperProcess`: a kernel's process tree under `reaper.py`, seen from the host."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from replsvc_kernels.backends.base import Process
from replsvc_kernels.kernel import LaunchError
from replsvc_kernels.messages import Exit

REAPER = str(Path(__file__).with_name("reaper.py"))
MARKER = "REPLSVC_KERNEL"


def sweep_marked(token: str) -> None:
    """End what a lost reaper left: processes that carry its token in their environment.

    Only needed when someone killed the reaper itself; a process that cleared its environment
    escapes this, which the isolation of local kernels (pid namespaces) does not allow.
    """
    needle = f"{MARKER}={token}".encode()
    found = True
    while found:
        found = False
        for path in Path("/proc").iterdir():
            if not path.name.isdigit() or int(path.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(int(path.name))
                try:
                    if needle in (path / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        # It has no environment any more some time before it has ended.
                        select.select([handle], [], [])
                        found = True
                finally:
                    os.close(handle)


class _Answer:
    """What the reaper says to one signal."""

    def __init__(self) -> None:
        self.event, self.delivered = trio.Event(), False


# What a reaper may take to end its tree before it is taken for stopped.
SWEEP_S = 10.0


class ReaperProcess(Process):
    """A kernel's process tree under `reaper.py`. `run` starts it and keeps it."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self._control: socket.socket | None = None
        self._reaper: trio.Process | None = None
        self._exit: Exit | None = None
        self._exited, self._swept = trio.Event(), trio.Event()
        self._answers: deque[_Answer] = deque()

    async def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        keep: Sequence[int],
        stdio: tuple[int, int],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the reaper and the kernel; report `started` when the kernel has been executed.

        `keep` are descriptors that the kernel inherits under the same numbers, `stdio` its fds 1
        and 2; they stay the caller's. Raises `LaunchError`. Runs until the tree is swept;
        cancelling kills the tree first.
        """
        token = secrets.token_hex(8)
        try:
            control, reaper = await self._spawn(argv, {**env, MARKER: token}, cwd, keep, stdio)
        except (OSError, ValueError) as error:
            raise LaunchError(f"the kernel's parent process can't be started: {error}") from error
        self._control, self._reaper = control, reaper
        swept = False
        kernel: int | None = None
        try:
            first = await self._hear(control)
            if first is None or "error" in first:
                reason = (first or {}).get("error", "its parent process ended")
                raise LaunchError(f"{argv[0]} can't be executed: {reason}")
            self.pid = int(first["pid"])
            with contextlib.suppress(OSError):
                kernel = os.pidfd_open(self.pid)
            task_status.started()
            while not swept and (packet := await self._hear(control)) is not None:
                if "exit" in packet or "exit_signal" in packet:
                    self._set_exit(Exit(packet.get("exit"), packet.get("exit_signal")))
                elif "delivered" in packet and self._answers:
                    answer = self._answers.popleft()
                    answer.delivered = bool(packet["delivered"])
                    answer.event.set()
                swept = "swept" in packet
        finally:
            self._control = None
            control.close()
            with trio.CancelScope(shield=True):
                # Its socket is closed, so it sweeps and ends by itself, however this was left.
                with trio.move_on_after(SWEEP_S):
                    await reaper.wait()
                if reaper.returncode is None:
                    reaper.kill()  # somebody stopped it
                    await reaper.wait()
                if reaper.returncode != 0:
                    # Without its reaper a kernel ends by the parent-death signal.
                    if kernel is not None:
                        await trio.lowlevel.wait_readable(kernel)
                    await trio.to_thread.run_sync(sweep_marked, token)
            if kernel is not None:
                os.close(kernel)
            self._set_exit(Exit(signal=signal.SIGKILL))
            self._swept.set()
            for answer in self._answers:
                answer.event.set()

    async def _spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        keep: Sequence[int],
        stdio: tuple[int, int],
    ) -> tuple[socket.socket, trio.Process]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:  # and with it our copy: else we would not see the reaper's end
            ours.setblocking(False)
            inherited = ",".join(map(str, keep))
            command = [sys.executable, "-I", "-S", REAPER, str(theirs.fileno()), inherited, "--"]
            try:
                process = await trio.lowlevel.open_process(
                    [*command, *argv],
                    env=env,
                    cwd=cwd,
                    pass_fds=[theirs.fileno(), *keep],
                    stdin=subprocess.DEVNULL,
                    stdout=stdio[0],
                    stderr=stdio[1],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        return ours, process

    async def _hear(self, control: socket.socket) -> dict[str, Any] | None:
        await trio.lowlevel.wait_readable(control)
        try:
            data = control.recv(4096)
        except OSError:
            return None
        return json.loads(data) if data else None

    def _say(self, **packet: object) -> bool:
        # Small packets, seldom: they always fit, so that no task waits half-way through a request.
        if self._control is None:
            return False
        try:
            self._control.send(json.dumps(packet).encode())
        except OSError:
            return False
        return True

    def _set_exit(self, exit_: Exit) -> None:
        if self._exit is None:
            self._exit = self.accounts.explain(exit_)
        self._exited.set()

    async def signal(self, number: int) -> bool:
        """See `Process.signal`."""
        if self._exit is not None or not self._say(signal=number):
            return False
        answer = _Answer()
        self._answers.append(answer)
        await answer.event.wait()
        return answer.delivered

    async def kill(self) -> None:
        """See `Process.kill`."""
        self._say(kill=True)
        with trio.move_on_after(SWEEP_S):
            await self._swept.wait()
            return
        # A reaper that does not answer (stopped, or starved) is ended; `run` sweeps without it.
        if self._reaper is not None:
            self._reaper.kill()
        await self._swept.wait()

    @property
    def exit(self) -> Exit | None:
        """See `Process.exit`."""
        return self._exit

    async def wait_exited(self) -> Exit:
        """See `Process.wait_exited`."""
        await self._exited.wait()
        assert self._exit is not None
        return self._exit
