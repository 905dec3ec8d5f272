"""The server's end of the socket to its host: JSON packets, descriptors in both directions.

Only the host, which is trusted, holds the other end; kernels never get this descriptor.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import Any, Iterable

MAX_PACKET = 256 * 1024
MAX_DESCRIPTORS = 253  # the kernel's SCM_MAX_FD


class Control:
    """See the module."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)

    def fileno(self) -> int:
        """For a poll."""
        return self._socket.fileno()

    def hear(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next packet with its descriptors (close-on-exec); None when the host is gone."""
        descriptors = array.array("i")
        size = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(MAX_PACKET, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return None
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                usable = len(payload) - len(payload) % descriptors.itemsize
                descriptors.frombytes(payload[:usable])
        if not data:
            return None
        return json.loads(data), list(descriptors)

    def say(self, packet: dict[str, Any], descriptors: Iterable[int] = ()) -> None:
        """Send a packet; a host that is gone is found out when it is next heard."""
        body = json.dumps(packet).encode()
        given = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)] if given else []
        try:
            self._socket.sendmsg([body], ancillary, socket.MSG_NOSIGNAL)
        except ConnectionError:
            return

    def close(self) -> None:
        """In a child: the control socket is the server's alone."""
        self._socket.close()


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors that were received and are not needed any more."""
    for fd in descriptors:
        os.close(fd)
