"""Questions at the terminal: a line that is typed there, without echo where it is a secret."""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import trio

STDIN = 0


class Terminal:
    """The terminal that is standard input; prompts go there too, wherever output is sent."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def of_stdin(cls) -> Self | None:
        """The terminal on standard input, None where that is none."""
        try:
            return cls(os.ttyname(STDIN)) if os.isatty(STDIN) else None
        except OSError:  # a terminal of another mount namespace has no name here
            return None

    async def ask(self, prompt: str, *, secret: bool) -> str | None:
        """One line, without its end; None for the end of input (Ctrl-D on an empty line).

        Cancelled, it takes nothing more, and echo is on again.
        """
        typed = b""
        with _silent(secret):
            await self._say(prompt.encode("utf-8", "backslashreplace"))
            while not typed.endswith(b"\n"):
                # A terminal is readable when a line is there, so the read does not block.
                await trio.lowlevel.wait_readable(STDIN)
                data = os.read(STDIN, 4096)
                if not data:
                    break
                typed += data
        if secret or not typed.endswith(b"\n"):
            await self._say(b"\n")  # which was not echoed
        if not typed:
            return None
        return typed.rstrip(b"\r\n").decode("utf-8", "replace")

    async def _say(self, data: bytes) -> None:
        await trio.to_thread.run_sync(self._write, data, abandon_on_cancel=True)

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_NOCTTY)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)


@contextmanager
def _silent(secret: bool) -> Iterator[None]:
    """What is typed inside is not shown, if it is secret; what was typed ahead is dropped then."""
    if not secret:
        yield
        return
    before = termios.tcgetattr(STDIN)
    without = [*before]
    without[3] &= ~termios.ECHO
    termios.tcsetattr(STDIN, termios.TCSAFLUSH, without)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
