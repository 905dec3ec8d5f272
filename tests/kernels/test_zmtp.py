"""Our end of a ZeroMQ connection: against libzmq, and against what is no honest peer."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import zmq
from hypothesis import given
from hypothesis import strategies as st

from replsvc_kernels._zmtp import (
    COMMAND,
    GREETING,
    LONG,
    MAX_COMMAND_BYTES,
    MAX_FRAMES,
    MAX_UNSENT_BYTES,
    MORE,
    Peer,
    Reader,
    Unsent,
    address_of,
    frame,
    message,
    ready,
)
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import ProtocolViolation

MOST = 1_000_000
HELLO = GREETING + ready("ROUTER", b"")

messages = st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=8), max_size=6)


def all_of(reader: Reader) -> list[list[bytes]]:
    return list(iter(reader.next, None))


@given(messages, st.lists(st.integers(1, 400)))
def test_however_bytes_arrive_the_messages_are_the_same(
    said: list[list[bytes]], sizes: list[int]
) -> None:
    data = HELLO + b"".join(message(one) for one in said)
    reader, heard = Reader(MOST), []
    for size in [*sizes, len(data)]:
        reader.feed(data[:size])
        data = data[size:]
        heard += all_of(reader)
    assert heard == said
    assert reader.held_bytes == 0


@given(st.binary(max_size=300))
def test_garbage_is_refused_or_waited_on(data: bytes) -> None:
    reader = Reader(MOST)
    reader.feed(data)
    with suppress(ProtocolViolation):
        assert reader.next() is None


@given(st.binary(max_size=300))
def test_garbage_after_a_handshake_is_a_message_or_refused(data: bytes) -> None:
    reader = Reader(MOST)
    reader.feed(HELLO + data)
    with suppress(ProtocolViolation):
        for said in all_of(reader):
            assert sum(map(len, said)) <= MOST


ANNOUNCED = bytes((LONG,)) + (MOST + 1).to_bytes(8, "big")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n", "does not speak ZMTP"),
        (GREETING.replace(b"\x7f\x03", b"\x7f\x01"), "ZMTP 3"),
        (GREETING.replace(b"NULL\0", b"CURVE"), "not NULL"),
        (GREETING + frame(b"early"), "before it is ready"),
        (HELLO + ANNOUNCED, "over 1000000 bytes"),
        (HELLO + message([b"x" * 600_000, b"y" * 600_000]), "over 1000000 bytes"),
        (HELLO + frame(b"", MORE) * (MAX_FRAMES + 1), "frames"),
        (HELLO + b"\x80\x00", "unknown flags"),
        (HELLO + frame(b"x", COMMAND | MORE), "unknown flags"),
        (HELLO + frame(bytes(MAX_COMMAND_BYTES + 1), COMMAND), "over"),
        (GREETING + frame(b"\5ERROR\4nope", COMMAND), "refuses us"),
    ],
)
def test_what_no_honest_peer_says_is_refused_as_soon_as_it_is_announced(
    data: bytes, reason: str
) -> None:
    reader = Reader(MOST)
    reader.feed(data)
    with pytest.raises(ProtocolViolation, match=reason):
        all_of(reader)


def test_commands_of_later_versions_are_ignored() -> None:
    reader = Reader(MOST)
    reader.feed(HELLO + frame(b"\4PING\0\0", COMMAND) + frame(b"", COMMAND) + message([b"x"]))
    assert all_of(reader) == [[b"x"]]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ipc:///run/k-1", (socket.AF_UNIX, "/run/k-1")),
        ("ipc://@name", (socket.AF_UNIX, "\0name")),
        ("tcp://127.0.0.1:80", (socket.AF_INET, ("127.0.0.1", 80))),
        ("tcp://[::1]:80", (socket.AF_INET6, ("::1", 80))),
    ],
)
def test_addresses_are_jupyters(url: str, address: object) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize("url", ["", "ipc://", "tcp://x", "tcp://:1", "udp://a:1", "tcp://a:b"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        address_of(url)


# Against libzmq


@pytest.fixture
def bound() -> Iterator[Callable[[int, str], zmq.Socket[bytes]]]:
    """Bind a socket of a kind as a kernel does."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened: list[zmq.Socket[bytes]] = []

    def bind(kind: int, url: str) -> zmq.Socket[bytes]:
        made = context.socket(kind)
        opened.append(made)
        if kind == zmq.XPUB:
            made.setsockopt(zmq.XPUB_VERBOSE, 1)
        made.bind(url)
        return made

    yield bind
    for made in opened:
        made.close(0)
    context.term()


@asynccontextmanager
async def connected(kind: Any, url: str, most: int = 100 * MOST) -> AsyncIterator[Peer]:
    peer = Peer(kind, url, b"me", most)
    try:
        with trio.fail_after(20):
            async with background_nursery() as nursery:
                nursery.start_soon(peer.run)
                yield peer
    finally:
        peer.close()


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[trio.MemoryReceiveChannel[list[bytes]]]:
    """What the other side says, as somebody who always listens hears it."""
    say, said = trio.open_memory_channel[list[bytes]](0)

    async def listen() -> None:
        while True:
            await say.send(await peer.receive())

    async with say, said, background_nursery() as nursery:
        nursery.start_soon(listen)
        yield said


async def heard(made: zmq.Socket[bytes]) -> list[bytes]:
    return await trio.to_thread.run_sync(made.recv_multipart)


@pytest.fixture(params=["ipc", "tcp"])
def url(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[str]:
    if request.param == "ipc":
        yield f"ipc://{runtime_dir}/z"
        (runtime_dir / "z").unlink(missing_ok=True)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield f"tcp://127.0.0.1:{port}"


async def test_requests_and_replies_of_any_size(
    url: str, bound: Callable[[int, str], zmq.Socket[bytes]]
) -> None:
    router = bound(zmq.ROUTER, url)
    large = os.urandom(10_000_000)
    async with connected("DEALER", url) as peer, listening(peer) as said:
        for request in ([b"a", b"", b"x" * 255], [b"x" * 256], [large, b"b"]):
            peer.send(request)
            got = await heard(router)
            assert got == [b"me", *request]
            await trio.to_thread.run_sync(router.send_multipart, got)
            assert await said.receive() == request


async def test_a_subscriber_is_welcomed_and_hears_all(
    url: str, bound: Callable[[int, str], zmq.Socket[bytes]]
) -> None:
    publisher = bound(zmq.XPUB, url)
    async with connected("SUB", url) as peer, listening(peer) as said:
        assert await heard(publisher) == [b"\1"]
        for number in range(500):
            publisher.send_multipart([b"topic", b"%d" % number])
        for number in range(500):
            assert await said.receive() == [b"topic", b"%d" % number]


async def test_a_kernel_that_binds_later_is_found(
    url: str, bound: Callable[[int, str], zmq.Socket[bytes]]
) -> None:
    async with connected("DEALER", url) as peer, background_nursery() as nursery:
        nursery.start_soon(peer.receive)
        peer.send([b"early"])
        await trio.testing.wait_all_tasks_blocked()  # it has tried, in vain
        router = bound(zmq.ROUTER, url)
        assert await heard(router) == [b"me", b"early"]


async def test_an_end_is_noticed_after_the_last_words(
    url: str, bound: Callable[[int, str], zmq.Socket[bytes]]
) -> None:
    router = bound(zmq.ROUTER, url)
    async with connected("DEALER", url) as peer, listening(peer) as said:
        peer.send([b"hello"])
        name, _ = await heard(router)
        router.send_multipart([name, b"last"])
        assert await said.receive() == [b"last"]
        router.close(0)
        await peer.lost.wait()


async def test_what_a_kernel_does_not_read_is_bounded(
    url: str, bound: Callable[[int, str], zmq.Socket[bytes]]
) -> None:
    del bound
    async with connected("DEALER", url) as peer:
        half = bytes(MAX_UNSENT_BYTES // 2)
        peer.send([half])
        with pytest.raises(Unsent):
            peer.send([half])


class Hostile:
    """Whoever connects gets the handshake, and then the same bytes again and again."""

    def __init__(self, path: str, endless: bytes) -> None:
        self._listening = trio.socket.socket(socket.AF_UNIX)
        self._path, self._endless = path, endless

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._listening.bind(self._path)
        self._listening.listen()
        task_status.started()
        with self._listening:
            accepted, _ = await self._listening.accept()
        with accepted, suppress(trio.BrokenResourceError):
            stream = trio.SocketStream(accepted)
            await stream.send_all(HELLO)
            while True:
                await stream.send_all(self._endless)


@pytest.mark.parametrize(
    ("endless", "reason"),
    [
        (frame(b"x" * 1_000, MORE), "frames"),
        (frame(b"x" * 60_000, MORE), "over"),
        (ANNOUNCED, "over"),
    ],
    ids=["small frames", "large frames", "a size without bytes"],
)
async def test_a_message_that_never_ends_is_refused_with_little_held(
    runtime_dir: Path, endless: bytes, reason: str
) -> None:
    path = f"{runtime_dir}/h"
    try:
        async with background_nursery() as nursery:
            await nursery.start(Hostile(path, endless).run)
            async with connected("SUB", f"ipc://{path}", MOST) as peer:
                with pytest.raises(ProtocolViolation, match=reason):
                    await peer.receive()
                assert peer._reader.held_bytes <= MOST + 128 * 1024
            nursery.cancel_scope.cancel()
    finally:
        Path(path).unlink()


async def test_commands_without_end_do_not_keep_others_waiting(runtime_dir: Path) -> None:
    path = f"{runtime_dir}/h"
    endless = frame(b"\4PING" + bytes(100), COMMAND) * 600
    try:
        async with background_nursery() as nursery:
            await nursery.start(Hostile(path, endless).run)
            async with connected("SUB", f"ipc://{path}", MOST) as peer, listening(peer):
                for _ in range(200):
                    await trio.lowlevel.checkpoint()  # would never return
                assert peer._reader.held_bytes < 1_000_000
            nursery.cancel_scope.cancel()
    finally:
        Path(path).unlink()
