"""The installed command, driven as a user drives it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "replsvc")
DEADLINE_S = 60


def _heed_signals() -> None:
    """The suite may itself run where a shell's `&` or nohup made it ignore these."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Command:
    """Starts `replsvc` in an empty directory, with a temporary directory of its own."""

    command = COMMAND

    def __init__(self, cwd: Path, tmp: Path) -> None:
        self.cwd, self.tmp = cwd, tmp
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REPLSVC_")}
        self.env["TMPDIR"] = str(tmp)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str, **options: object) -> subprocess.Popen[bytes]:
        """Start it in a process group of its own, as a shell does; streams are pipes."""
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "preexec_fn": _heed_signals,
            **options,
        }
        process = subprocess.Popen(
            [*COMMAND, *args],
            cwd=self.cwd,
            env=self.env,
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )
        self._started.append(process)
        return process

    def __call__(
        self, *args: str, feed: bytes | None = None, **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it to its end; `feed` is its standard input."""
        if feed is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*args, **options)
        out, err = process.communicate(feed, timeout=DEADLINE_S)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def run(self, *args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        """`replsvc run --isolation none`: the command line's own matters."""
        return self("run", "--isolation", "none", *args, **options)  # type: ignore[arg-type]

    def without_namespaces(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        """Where no more user namespaces can be made, as on a machine that forbids them."""
        script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
        done = subprocess.run(
            ["unshare", "-Ur", "sh", "-c", script, "sh", *self.command, *args],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        return subprocess.CompletedProcess(args, done.returncode, done.stdout, done.stderr)

    def left_behind(self) -> list[str]:
        """Files in its temporary directory, and processes that know of that directory."""
        found = [str(path) for path in self.tmp.iterdir()]
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and process.name != str(os.getpid()):
                try:
                    known = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if os.fsencode(self.tmp) in known:
                    found.append(f"process {process.name}")
        return found

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def replsvc(tmp_path: Path) -> Iterator[Command]:
    # Not below pytest's own: the names of unix sockets are short.
    tmp = Path(tempfile.mkdtemp(prefix="c-"))
    command = Command(tmp_path, tmp)
    try:
        yield command
    finally:
        command.close()
        shutil.rmtree(tmp, ignore_errors=True)


class Gate:
    """Where a cell waits until the test lets it through; a cell that never comes fails the test."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)
        self.code = (
            "import socket; _gate = socket.socket(socket.AF_UNIX); "
            f"_gate.connect({str(path)!r}); _ = _gate.recv(1); _gate.close()"
        )

    def wait(self) -> socket.socket:
        """Wait until a cell stands there; closing what this gives lets it through."""
        return self._listener.accept()[0]

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    with tempfile.TemporaryDirectory(prefix="g-") as directory:
        gate = Gate(Path(directory, "s"))
        yield gate
        gate.close()
