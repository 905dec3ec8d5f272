"""`replsvc run` on a terminal: a real one, whose other end types and reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Command

DEADLINE_S = 60
ASK = "print('before'); name = input('name? '); print('hi', name)"


class Person:
    """Sits at the other end of a terminal that `replsvc` is started on."""

    def __init__(self, replsvc: Command) -> None:
        self._replsvc = replsvc
        self._here, self._there = pty.openpty()
        self.seen = b""
        self.process: Any = None

    def start(self, *args: str, **streams: Any) -> None:
        there = self._there

        def own() -> None:
            fcntl.ioctl(there, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        options = {"stdin": there, "stdout": there, "stderr": there, "preexec_fn": own, **streams}
        self.process = self._replsvc.start("run", "--isolation", "none", *args, **options)

    def type(self, keys: bytes) -> None:
        os.write(self._here, keys)

    def until(self, text: bytes) -> bytes:
        """Read until this has been shown; what was shown since the last time."""
        while text not in self.seen:
            ready, _, _ = select.select([self._here], [], [], DEADLINE_S)
            assert ready, self.seen
            self.seen += os.read(self._here, 4096)
        shown, _, self.seen = self.seen.partition(text)
        return shown + text

    def status(self) -> int:
        status: int = self.process.wait(DEADLINE_S)
        return status

    def rest(self) -> bytes:
        """What is shown until the command ends and nobody holds the terminal."""
        self.close_theirs()
        try:
            while data := os.read(self._here, 4096):
                self.seen += data
        except OSError:  # how a terminal ends
            pass
        return self.seen

    @property
    def echo(self) -> bool:
        return bool(termios.tcgetattr(self._here)[3] & termios.ECHO)

    def close_theirs(self) -> None:
        if self._there >= 0:
            os.close(self._there)
            self._there = -1

    def close(self) -> None:
        self.close_theirs()
        os.close(self._here)


@pytest.fixture
def person(replsvc: Command) -> Iterator[Person]:
    person = Person(replsvc)
    yield person
    person.close()


def test_a_question_is_answered_at_the_terminal(person: Person) -> None:
    person.start(ASK)
    assert person.until(b"name? ") == b"before\r\nname? "
    person.type("Ada é\n".encode())
    assert person.rest() == "Ada é\r\nhi Ada é\r\n".encode()
    assert person.status() == 0


def test_a_password_is_not_shown(person: Person) -> None:
    person.start("import getpass; print(len(getpass.getpass('key? ')))")
    person.until(b"key? ")
    assert not person.echo
    person.type(b"hunter2\n")
    assert person.until(b"7\r\n") == b"\r\n7\r\n"
    assert person.echo
    person.rest()
    assert person.status() == 0


def test_the_end_of_input_is_an_eof_error(person: Person) -> None:
    person.start(ASK)
    person.until(b"name? ")
    person.type(b"\x04")
    assert b"EOFError" in person.rest()
    assert person.status() == 1


def test_ctrl_c_at_a_question_interrupts_the_code(person: Person) -> None:
    person.start("import getpass; getpass.getpass('key? ')")
    person.until(b"key? ")
    person.type(b"\x03")
    person.until(b"interrupted")
    assert person.echo
    person.rest()
    assert person.status() == 130


def test_a_breakpoint_is_talked_to(person: Person) -> None:
    person.start("x = 20\nbreakpoint()\nprint('x is', x)")
    person.until(b"ipdb> ")
    person.type(b"p x + 1\n")
    assert b"21\r\n" in person.until(b"ipdb> ")
    person.type(b"x = 5\n")
    person.until(b"ipdb> ")
    person.type(b"c\n")
    assert b"x is 5" in person.rest()
    assert person.status() == 0


def test_prompts_stay_out_of_standard_output(person: Person) -> None:
    person.start(ASK, stdout=subprocess.PIPE)
    person.until(b"name? ")
    person.type(b"Ada\n")
    assert person.process.stdout.read() == b"before\nhi Ada\n"
    assert person.status() == 0


def test_json_on_a_terminal_asks_nobody(person: Person) -> None:
    person.start("--json", "input()")
    assert b"StdinNotImplementedError" in person.rest()
    assert person.status() == 1


@pytest.mark.parametrize("feed", [None, b"Ada\n"])
def test_asking_without_a_terminal_is_an_error_at_once(replsvc: Command, feed: Any) -> None:
    done = replsvc.run(ASK, feed=feed)
    assert (done.returncode, done.stdout) == (1, b"before\n")
    assert b"StdinNotImplementedError" in done.stderr
