"""Serving the application: a socket of our own, Hypercorn's HTTP/1.1, an orderly end."""

from __future__ import annotations

import errno
import gc
import socket
import traceback
from collections.abc import Callable, Iterable
from functools import partial

import structlog
import trio

from replsvc.config import Service
from replsvc.coordinator import Coordinator
from replsvc.errors import ConfigError
from replsvc.gateways.app import create_app
from replsvc.gateways.connection import Connections
from replsvc_kernels.background import background_nursery

log = structlog.get_logger("replsvc.http")

BACKLOG = 1024
# A client that vanished without a word is noticed after about a minute.
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 30, 10, 3


async def bind(service: Service) -> socket.socket:
    """Take the service's address; port 0 takes a free one. Nothing is answered before `serve`.

    Raises `ConfigError` when the address can't be had.
    """
    host, port = service.host, service.port
    try:
        found = await trio.socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name with both is served where most clients look first.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _unusable(service, error) from error
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", PROBE_AFTER_S),
            ("TCP_KEEPINTVL", PROBE_EVERY_S),
            ("TCP_KEEPCNT", PROBES),
        ):
            if (option := getattr(socket, name, None)) is not None:
                listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unusable(service, error) from error
    return listener


def _unusable(service: Service, error: OSError) -> ConfigError:
    where = f"port {service.port} on {service.host}"
    if isinstance(error, socket.gaierror):
        return ConfigError(
            f"the host {service.host!r} can't be resolved: {error.strerror}.",
            hint="Set service.host to an address of this machine.",
        )
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"{where} is in use.",
            hint="Stop what listens there, or choose another port; 0 takes a free one.",
        )
    return ConfigError(
        f"{where} can't be used: {error.strerror}.",
        hint="Choose a port above 1023, and a host that is an address of this machine.",
    )


def url_of(listener: socket.socket) -> str:
    """The URL under which this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1" if listener.family == socket.AF_INET else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    coordinator: Coordinator,
    service: Service,
    *,
    keys: Iterable[str],
    listener: socket.socket | None = None,
    stop: trio.Event | None = None,
    ready: Callable[[str], object] | None = None,
    own_process: bool = False,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then end the coordinator's sessions and return.

    Those that survive a restart are left to the next service, if `service.keep_survivors` says so.

    `ready(url)` is called, and `task_status` started with the URL, once requests are answered. On
    `stop` no new connection is taken, every session is ended, and clients get the results and the
    last events of that, for at most `service.stop_deadline_s`; then connections are closed.
    Cancelling closes them at once and leaves the sessions.

    `own_process` says that the process is the service's alone: then the garbage collector is set
    up for it. Raises `ConfigError` for an address that can't be had, or no usable key.
    """
    stopping = trio.Event() if stop is None else stop
    app = create_app(coordinator, service, keys=keys, stopping=stopping)
    with await bind(service) if listener is None else listener as bound:
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            raise _unusable(service, error) from error
        url = url_of(bound)
        connections = Connections(app)
        async with background_nursery() as serving:
            async with background_nursery() as accepting:
                taken = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
                await accepting.start(
                    partial(
                        trio.serve_listeners,
                        partial(_serve_one, connections),
                        [taken],
                        handler_nursery=serving,
                    )
                )
                if own_process:
                    settle_memory()
                if ready is not None:
                    ready(url)
                task_status.started(url)
                await stopping.wait()
            with trio.move_on_after(service.stop_deadline_s):
                await coordinator.stop(keep_survivors=service.keep_survivors)
                await connections.finish()


def settle_memory() -> None:
    """Put what start-up made out of the collector's sight, and let it look less often.

    Full collections over all modules and schemas are what long tails of latency were made of.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve_one(connections: Connections, stream: trio.SocketStream) -> None:
    """Serve one client; nothing that it sends can end another's connection."""
    try:
        await connections.serve(stream)
    except* Exception as group:  # noqa: BLE001 - whatever hostile bytes bring the protocol to
        log.warning(
            "connection ended by an error",
            traceback="".join(traceback.format_exception(group)),
        )
