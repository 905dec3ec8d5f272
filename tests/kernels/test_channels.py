"""Channels to something that is no kernel: what libzmq's own thread must survive."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import trio

from replsvc_kernels._channels import Channels
from replsvc_kernels.backends.base import Connection
from replsvc_kernels.messages import Limits

PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}


class Listener:
    """Accepts on a unix socket, and hangs up at once or when told to."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(100)
        self.accepted = threading.Semaphore(0)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted.release()
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


async def test_a_peer_that_hangs_up_while_we_close_does_not_stop_libzmq(runtime_dir: Path) -> None:
    connection = Connection("ipc", f"{runtime_dir}/z", PORTS, b"key")
    listeners = [Listener(f"{runtime_dir}/z-{port}") for port in (1, 2, 4)]
    try:
        for _ in range(300):
            Channels(connection, Limits()).close()
        for listener in listeners:
            while listener.accepted.acquire(blocking=False):
                pass
        # Its thread still makes connections.
        with Channels(connection, Limits()):
            for listener in listeners:
                with trio.fail_after(20):
                    await trio.to_thread.run_sync(listener.accepted.acquire, abandon_on_cancel=True)
    finally:
        for listener in listeners:
            listener.close()
        for path in runtime_dir.iterdir():
            path.unlink()
