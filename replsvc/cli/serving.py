"""The service as a process: bound, announced, and ended in time by signals."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import resource
import secrets
import signal
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from replsvc.cli.logs import log_to_stderr
from replsvc.cli.ready import ReadyFile
from replsvc.cli.screen import BY_SIGNAL, FAILED, OK, explain, heeded, say
from replsvc.config import Config
from replsvc.coordinator import Coordinator
from replsvc.errors import ConfigError, InvalidInputError, ReplsvcError
from replsvc.gateways.serve import bind, serve
from replsvc.settings import DEFAULT, Loaded
from replsvc_kernels.background import background_nursery

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Of the deadline, what an orderly end may take; the rest is for ending what did not listen.
ORDERLY = 0.8
# What ending everything at once may take before the process ends without it.
AT_ONCE_S = 1.0
# A service can expect a session at any time; other coordinators make kernels ahead on demand only.
SERVICE_POOL_MIN = 2


def run_service(loaded: Loaded, ready_file: Path | None = None) -> int:
    """Serve until told to stop; returns the status to exit with. Raises `ReplsvcError`."""
    config = loaded.config
    if loaded.origins["isolation"] == DEFAULT:
        # A service runs other people's code: that nothing protects it from is never a surprise.
        config = config.model_copy(update={"isolation": "required"})
    if loaded.origins["pool_min"] == DEFAULT:
        config = config.model_copy(update={"pool_min": SERVICE_POOL_MIN})
    _allow_descriptors()
    log_to_stderr(logging.INFO)
    with ReadyFile(ready_file) as ready:
        return trio.run(_Service(config, ready).run)


def _allow_descriptors() -> None:
    """A session takes some fifteen of them, and a shell's usual bound is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Service:
    def __init__(self, config: Config, ready: ReadyFile) -> None:
        self._config, self._ready = config, ready
        self._scope = trio.CancelScope()
        self._stop = trio.Event()
        self._at_once: int | None = None
        self._key: str | None = None

    async def run(self) -> int:
        """See `run_service`."""
        with trio.open_signal_receiver(*heeded(*STOPPING)) as signals:
            async with background_nursery() as nursery:
                nursery.start_soon(self._watch, signals)
                with self._scope:
                    return await self._serve()
        assert self._at_once is not None
        return BY_SIGNAL + self._at_once

    async def _watch(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if not self._stop.is_set():
                self._stop.set()
                deadline_s = self._config.service.stop_deadline_s
                self._end_after(deadline_s, FAILED, f"not done within {deadline_s:g} s")
            elif self._at_once is None:
                self._at_once = number
                self._end_after(AT_ONCE_S, BY_SIGNAL + number, "told to end at once")
                self._scope.cancel()

    def _end_after(self, seconds: float, status: int, why: str) -> None:
        """End the process then, whatever it does; what watches over kernels ends them with it."""

        def end() -> None:
            say(f"{why}: whatever runs still is ended by force.")
            self._ready.remove()
            os._exit(status)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()

    async def _serve(self) -> int:
        service = self._config.service
        try:
            listener = await bind(service)
        except ConfigError as error:
            explain(error)
            return FAILED
        with listener:
            keys = service.keys or self._one_time_key(listener)
            orderly_s = service.stop_deadline_s * ORDERLY
            async with Coordinator(self._config) as coordinator:
                try:
                    missing = await coordinator.check()
                except ReplsvcError as error:
                    explain(error)
                    return FAILED
                if missing:
                    say(f"isolation is partial, without {'; '.join(missing)}.")
                await serve(
                    coordinator,
                    service.model_copy(update={"stop_deadline_s": orderly_s}),
                    keys=keys,
                    listener=listener,
                    stop=self._stop,
                    ready=self._announce,
                    own_process=True,
                )
        return OK

    def _one_time_key(self, listener: socket.socket) -> tuple[str, ...]:
        address = listener.getsockname()[0]
        if not ipaddress.ip_address(address).is_loopback:
            raise ConfigError(
                f"{self._config.service.host} can be reached from other machines, and there are no "
                "keys.",
                hint="Set service.keys in replsvc.toml, or REPLSVC_SERVICE__KEYS as a JSON list; "
                "or listen on 127.0.0.1.",
            )
        self._key = secrets.token_urlsafe(32)
        return (self._key,)

    def _announce(self, url: str) -> None:
        # The file first: whoever has read the lines finds it.
        try:
            self._ready.write(url, self._key)
        except OSError as error:
            raise InvalidInputError(f"--ready-file can't be written: {error.strerror}.") from error
        with contextlib.suppress(OSError):  # nobody has to listen
            print(f"replsvc serves {url}", flush=True)
            if self._key is not None:
                print(f"Key for this run: {self._key}", flush=True)
