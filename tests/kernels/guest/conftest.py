"""A guest as its host sees it: the descriptor, the pipes, and a plain blocking Jupyter client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

import kernel_python
import measured

GUEST = Path(__file__).parents[3] / "kernels" / "replsvc_kernels" / "guest"
NONCE = "5eed"
PATIENCE_S = 30.0
TURN = re.compile(rb"\x1b\]9913;%s;t\d+\x07" % NONCE.encode())


@dataclass
class Pipe:
    """The read end of one stream; a thread reads it to its end."""

    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self, fd: int) -> None:
        while chunk := os.read(fd, 1 << 20):
            with self.changed:
                self.data += chunk
                self.changed.notify_all()
        os.close(fd)
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, what: Callable[[bytes], bool]) -> bytes:
        """Wait until the bytes so far, without the marks of turns, satisfy `what`."""
        with self.changed:
            assert self.changed.wait_for(lambda: what(TURN.sub(b"", self.data)), PATIENCE_S)
            return TURN.sub(b"", self.data)

    def until(self, end: bytes) -> bytes:
        return self.wait(lambda data: end in data)

    def whole(self) -> bytes:
        """Everything, once nobody holds the write end any more."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.ended, PATIENCE_S), self.data
            return TURN.sub(b"", self.data)


@dataclass
class Ran:
    """What one request came to."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]]
    out: Pipe
    err: Pipe

    @property
    def content(self) -> dict[str, Any]:
        return self.reply["content"]

    @property
    def status(self) -> str:
        return self.content["status"]

    @property
    def traceback(self) -> str:
        return "\n".join(self.content["traceback"])

    @property
    def value(self) -> str:
        """The text of the last expression's value."""
        assert self.status == "ok", self.traceback
        (result,) = self.of("execute_result")
        return result["content"]["data"]["text/plain"]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["msg_type"] in kinds]


class Guest:
    """One guest process, launched as a backend does."""

    nonce = NONCE

    def __init__(self, workspace: Path, **hello: Any) -> None:
        self.workspace = workspace
        # sockets have short names
        self._sockets = tempfile.TemporaryDirectory(prefix="g")
        self.host, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host.settimeout(PATIENCE_S)
        python = hello.pop("python", kernel_python.path)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(workspace),
            "NO_COLOR": "1",
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "PYTHONNOUSERSITE": "1",
            **measured.variables(),
        }
        env.update(hello.pop("env", {}))
        self.process = subprocess.Popen(
            [python, str(GUEST), str(theirs.fileno())],
            cwd=workspace,
            env=env,
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self.pair = 0
        self._readers: list[threading.Thread] = []
        self.session = Session(key=os.urandom(16).hex().encode())
        # as any JSON: the stock packer refuses code with lone surrogates
        self.session.pack = lambda value: json.dumps(value, default=str).encode()
        ip = f"{self._sockets.name}/z"
        self.orphan = self.send_pair(
            0,
            key=self.session.key.decode(),
            transport="ipc",
            ip=ip,
            ports={"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5},
            nonce=NONCE,
            **{"hidden": ["replsvc", "replsvc_kernels", "replsvc_extensions"], **hello},
        )
        try:
            said = self.host.recv(65536)
        except ConnectionResetError:
            # It ended without reading our packet; what it said before comes after the error.
            said = self.host.recv(65536)
        self.ready = json.loads(said)
        self.context: Any = None
        if not self.ready["ready"]:
            return
        self.context = zmq.Context()
        self.shell, self.control, self.stdin = (
            self._connect(zmq.DEALER, f"{ip}-{port}") for port in (1, 4, 3)
        )
        self.iopub = self._connect(zmq.SUB, f"{ip}-2")
        self.iopub.subscribe(b"")
        assert self._next()["msg_type"] == "iopub_welcome"

    def _connect(self, kind: int, path: str) -> Any:
        channel = self.context.socket(kind)
        channel.linger = 0
        channel.setsockopt(zmq.IDENTITY, b"tester")
        channel.connect(f"ipc://{path}")
        return channel

    def send_pair(self, number: int, **fields: Any) -> tuple[Pipe, Pipe]:
        reads, writes = zip(*(os.pipe() for _ in range(2)), strict=True)
        packet = json.dumps({**fields, "pair": number}).encode()
        socket.send_fds(self.host, [packet], list(writes))
        pipes = []
        for read, write in zip(reads, writes, strict=True):
            os.close(write)
            pipe = Pipe()
            reader = threading.Thread(target=pipe.read, args=(read,))
            reader.start()
            self._readers.append(reader)
            pipes.append(pipe)
        return pipes[0], pipes[1]

    def request(
        self, kind: str, content: dict[str, Any], metadata: Any = None, channel: Any = None
    ) -> dict[str, Any]:
        message = self.session.msg(kind, content, metadata=metadata)
        self.session.send(self.shell if channel is None else channel, message)
        return message

    def start(
        self,
        code: str,
        env: dict[str, str] | None = None,
        brief: bool = False,
        own: dict[str, Any] | None = None,
        **content: Any,
    ) -> Any:
        """Send a cell; `finish` waits for it, unless it is `brief`."""
        self.pair += 1
        pipes = self.send_pair(self.pair)
        fields = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": False}
        message = self.request(
            "execute_request",
            {**fields, **content},
            {"replsvc": {"pair": self.pair, "env": env or {}, "brief": brief, **(own or {})}},
        )
        return message, *pipes

    def finish(self, started: Any) -> Ran:
        message, out, err = started
        messages = self.until_idle(message)
        return Ran(self.reply(), messages, out, err)

    def run(self, code: str, env: dict[str, str] | None = None, **content: Any) -> Ran:
        return self.finish(self.start(code, env, **content))

    def setup(self, source: str, name: str = "ext", **fields: Any) -> Ran:
        self.pair += 1
        pipes = self.send_pair(self.pair)
        content = {
            "name": name,
            "source": source,
            "file": f"<extension {name}>",
            "first_line": 1,
            "body_of": None,
            "values": {},
            "pair": self.pair,
            **fields,
        }
        message = self.request("setup_request", content)
        return self.finish((message, *pipes))

    def interrupt(self, started: Any, seen: bytes) -> Ran:
        """Interrupt the cell once it has printed `seen`."""
        started[1].until(seen)
        os.killpg(self.process.pid, 2)
        return self.finish(started)

    def reply(self, channel: Any = None) -> dict[str, Any]:
        channel = self.shell if channel is None else channel
        assert channel.poll(PATIENCE_S * 1000), "no reply"
        return self.session.recv(channel)[1]

    def until_idle(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        messages = []
        while True:
            received = self._next()
            if received["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if received["content"].get("execution_state") == "idle":
                return messages
            messages.append(received)

    def next_from_iopub(self) -> dict[str, Any]:
        return self._next()

    def _next(self) -> dict[str, Any]:
        assert self.iopub.poll(PATIENCE_S * 1000), self.orphan[1].data.decode()
        return self.session.recv(self.iopub)[1]

    def close(self) -> None:
        if measured.variables():
            # a killed one saves no count; one that is stuck has none worth waiting for
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        self.process.kill()
        self.process.wait()
        self.host.close()
        if self.context is not None:
            for channel in (self.shell, self.control, self.stdin, self.iopub):
                channel.close()
            self.context.term()
        for reader in self._readers:
            reader.join(PATIENCE_S)
        self._sockets.cleanup()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Guest]]:
    """Launch guests that end with the test."""
    guests: list[Guest] = []

    def start(**options: Any) -> Guest:
        guests.append(Guest(tmp_path, **options))
        return guests[-1]

    yield start
    for guest in guests:
        guest.close()


@pytest.fixture
def guest(launch: Callable[..., Guest]) -> Guest:
    """A guest that is ready."""
    started = launch()
    assert started.ready["ready"], started.ready
    return started
