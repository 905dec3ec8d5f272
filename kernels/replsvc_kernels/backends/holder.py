"""A process that keeps descriptors for a coordinator, so that a kernel need not notice its death.

Run as a script (`PYTHON -I -S holder.py LISTEN CLIENT GRACE_S PATH`), standard library only, and a
process of its own at once: nothing that happens to who started it happens to it. `LISTEN` is a
listening SEQPACKET socket bound to `PATH`, `CLIENT` a connected one. Packets are JSON objects:

- `{"put": NAME}` with descriptors: keep them by that name, instead of what it had;
- `{"drop": NAME}`: close them, and those of all names that begin with `NAME/`;
- `{"list": true}`: answered with `{"item": NAME}` and copies for each, then `{"items": COUNT}`;
- `{"grace_s": SECONDS}`: how long to keep all of it while nobody is connected.

One client at a time: a new one, of the same user, takes the place of the last. It ends, and closes
everything, when nobody came in the grace, or when the client leaves and nothing is kept. What it
keeps is in nobody's file: names are all that it understands.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_PACKET = 64 * 1024
MAX_DESCRIPTORS = 253  # the kernel's SCM_MAX_FD
PR_SET_DUMPABLE = 4
# A client that does not read what it asked for is none.
SEND_S = 10


def send(client: socket.socket, packet: dict[str, Any], descriptors: Iterable[int] = ()) -> None:
    """Send a packet with descriptors. Raises `OSError`."""
    given = array.array("i", descriptors)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if given else []
    client.sendmsg([json.dumps(packet).encode()], ancillary, socket.MSG_NOSIGNAL)


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A packet with its descriptors, close-on-exec; an empty one at the end. Raises `OSError`."""
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, _, _ = client.recvmsg(MAX_PACKET, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return (json.loads(data) if data else {}), list(descriptors)


class _Holder:
    def __init__(self, listening: socket.socket, client: socket.socket, grace_s: float) -> None:
        self._listening, self._grace_s = listening, grace_s
        self._client: socket.socket | None = client
        client.settimeout(SEND_S)
        self._items: dict[str, list[int]] = {}

    def serve(self) -> None:
        """Return when there is nothing left to wait for."""
        alone_since = 0.0
        while self._client is not None or self._items:
            waiting = [self._listening]
            left = None
            if self._client is not None:
                waiting.append(self._client)
            else:
                left = alone_since + self._grace_s - time.monotonic()
                if left <= 0:
                    return
            poll = select.poll()
            for one in waiting:
                poll.register(one, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(None if left is None else left * 1_000)]
            if self._listening.fileno() in ready:
                self._accept()
            elif ready:
                self._hear()
            if self._client is not None:
                alone_since = time.monotonic()

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        _, uid, _ = array.array("i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            client.close()
            return
        # What the last one said before it was killed may still be unread, and holds descriptors.
        while self._client is not None and _readable(self._client):
            self._hear()
        self._leave()
        client.settimeout(SEND_S)
        self._client = client

    def _leave(self) -> None:
        if self._client is not None:
            if self._items:
                self._client.close()
            else:
                # It hears of our end when there is nothing left of us, our name included.
                self._last = self._client
            self._client = None

    def _hear(self) -> None:
        assert self._client is not None
        try:
            packet, descriptors = receive(self._client)
            if "put" in packet:
                self._close(packet["put"])
                self._items[packet["put"]] = descriptors
            elif "drop" in packet:
                name = packet["drop"]
                for one in [one for one in self._items if f"{one}/".startswith(f"{name}/")]:
                    self._close(one)
            elif "list" in packet:
                for name, held in self._items.items():
                    send(self._client, {"item": name}, held)
                send(self._client, {"items": len(self._items)})
            elif "grace_s" in packet:
                self._grace_s = float(packet["grace_s"])
            else:
                self._leave()
        except OSError:
            self._leave()

    def _close(self, name: str) -> None:
        for fd in self._items.pop(name, ()):
            os.close(fd)


def _readable(client: socket.socket) -> bool:
    # Not select(2): there may be any number of descriptors.
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return bool(poll.poll(0))


def main(listen: int, client: int, grace_s: float, path: str) -> None:
    """See the module."""
    os.setsid()
    if os.fork():
        os._exit(0)
    # Keys pass through here: no core dump, and no debugger of the same user.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Ctrl-C and a closed terminal are for others.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listening = socket.socket(fileno=listen)
    holder = _Holder(listening, socket.socket(fileno=client), grace_s)
    holder.serve()
    # The name goes first: whoever still connects finds the end, and makes another holder.
    Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
