"""A coordinator's end of its holder (`holder.py`): what is put there outlives the coordinator."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replsvc_kernels.backends import holder as process
from replsvc_kernels.kernel import LaunchError

log = logging.getLogger("replsvc")

SOCKET = "holder"
ANSWER_S = 10.0
MAX_FACTS = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """What was put: facts as plain JSON, and descriptors, for whoever takes them to close."""

    facts: Mapping[str, Any]
    fds: tuple[int, ...]

    def close(self) -> None:
        """Close the descriptors: nobody wants them."""
        for fd in self.fds:
            os.close(fd)


class Holder:
    """See the module. Made by `start` or `connect`; `close` leaves what it keeps to its grace.

    `lost` says that the holder itself has died: live kernels do not mind, but none of them will
    outlive this coordinator.
    """

    def __init__(self, client: socket.socket) -> None:
        self._socket = client
        self._socket.settimeout(ANSWER_S)
        self.lost = False
        self.leaving = False
        """Set to leave without ending what is held: the next coordinator goes on with it."""

    @classmethod
    def start(cls, directory: Path, grace_s: float) -> Holder:
        """Start one in the data directory, in place of one that has ended. Blocks.

        Raises `LaunchError`.
        """
        path = directory / SOCKET
        try:
            with ExitStack() as stack:
                place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, place)
                listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(listening)
                path.unlink(missing_ok=True)
                # By descriptor: no path is too long for a unix socket that way.
                listening.bind(f"/proc/self/fd/{place}/{SOCKET}")
                path.chmod(0o600)
                listening.listen(4)
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.enter_context(theirs)
                fds = (listening.fileno(), theirs.fileno())
                arguments = [*map(str, fds), repr(grace_s), str(path)]
                subprocess.run(  # noqa: S603 - our own file
                    [sys.executable, "-I", "-S", process.__file__, *arguments],
                    pass_fds=fds, env={}, cwd="/", check=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"no holder can be started in {directory}: {error}") from error
        return cls(ours)

    @classmethod
    def connect(cls, directory: Path) -> Holder | None:
        """The holder that an earlier coordinator left, None when there is none. Blocks."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                client.connect(f"/proc/self/fd/{place}/{SOCKET}")
            finally:
                os.close(place)
        except OSError:
            client.close()
            return None
        return cls(client)

    def items(self) -> dict[str, Item]:
        """Everything that is held, by name; it goes on being held. Blocks.

        A holder that has just ended has nothing, and is `lost`.
        """
        found: dict[str, Item] = {}
        try:
            process.send(self._socket, {"list": True})
            while True:
                packet, fds = process.receive(self._socket)
                if "item" not in packet:
                    if "items" not in packet:
                        raise ConnectionError("the holder has ended")
                    return found
                found[packet["item"]] = _item(fds)
        except OSError:
            for item in found.values():
                item.close()
            self.lost = True
            return {}

    def put(
        self, name: str, fds: Iterable[int] = (), *, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Have copies of `fds` kept, with `facts`, which no file ever holds."""
        with ExitStack() as stack:
            memory = os.memfd_create("facts", os.MFD_CLOEXEC)
            stack.callback(os.close, memory)
            if facts:
                with open(memory, "wb", closefd=False) as file:
                    file.write(json.dumps(facts).encode())
            self._send({"put": name}, (memory, *fds))

    def drop(self, name: str) -> None:
        """Let go of this name, and of all below it (`name/...`)."""
        if not self.leaving:
            self._send({"drop": name})

    def grace(self, seconds: float) -> None:
        """How long to keep everything while no coordinator is connected."""
        self._send({"grace_s": seconds})

    def _send(self, packet: Mapping[str, Any], fds: Iterable[int] = ()) -> None:
        # It blocks while the holder's queue is full, which empties as fast as it can run: the order
        # of what it is told is what makes a sudden end safe.
        if self.lost:
            return
        try:
            process.send(self._socket, dict(packet), fds)
        except OSError as error:
            self.lost = True
            log.warning("the holder is gone, what lives does not survive a restart: %s", error)

    def ended(self) -> bool:
        """Whether the holder has died."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return self.lost or bool(poll.poll(0))

    def close(self) -> None:
        """Leave: what it keeps is for the next coordinator, for as long as its grace. Blocks.

        A holder that keeps nothing has ended when this returns.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(1)
        self._socket.close()


def _item(fds: list[int]) -> Item:
    memory, *rest = fds
    try:
        size = os.fstat(memory).st_size
        facts: Any = {}
        with suppress(ValueError):
            facts = json.loads(os.pread(memory, min(size, MAX_FACTS), 0)) if size else {}
    finally:
        os.close(memory)
    return Item(facts if isinstance(facts, dict) else {}, tuple(rest))
