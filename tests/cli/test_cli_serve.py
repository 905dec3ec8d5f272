from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from watched import no_process_left, stopped_reaper


class Service:
    """A running `replsvc serve`; `said` is what it printed, `known` what its ready file says."""

    def __init__(self, replsvc, *args: str, lines: int = 2) -> None:
        self.ready_file = replsvc.cwd / "ready.json"
        self.process = replsvc.start(
            *("serve", "--isolation", "none", "--port", "0", "--ready-file", "ready.json", *args)
        )
        self.said = [self.process.stdout.readline().decode() for _ in range(lines)]
        assert all(self.said), self.process.stderr.read().decode()
        self.known = json.loads(self.ready_file.read_text())

    def request(
        self, method: str, path: str, body: Any = None, *, key: str | None = None
    ) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.known["url"] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {key or self.known['key']}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def session(self, **body: Any) -> str:
        status, session = self.request("POST", "/v1/sessions", body)
        assert status == 201, session
        return session["id"]

    def call(self, session: str, code: str, **fields: Any) -> tuple[int, Any]:
        body = {"tool": "repl", "input": {"code": code}, **fields}
        return self.request("POST", f"/v1/sessions/{session}/calls", body)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_where_the_ready_file_says_until_it_is_told_to_stop(replsvc, number):
    service = Service(replsvc)
    assert service.said == [
        f"replsvc serves {service.known['url']}\n",
        f"Key for this run: {service.known['key']}\n",
    ]
    assert stat.S_IMODE(service.ready_file.stat().st_mode) == 0o600
    assert service.request("GET", "/healthz") == (200, {"status": "ok"})
    status, call = service.call(service.session(), "6 * 7")
    assert (status, call["result"]["text/plain"]) == (200, "42")

    assert service.end(number) == 0
    assert not service.ready_file.exists()
    assert replsvc.left_behind() == []


def test_only_the_one_time_key_is_let_in(replsvc):
    service = Service(replsvc)
    status, problem = service.request("GET", "/v1/sessions", key="another")
    assert (status, problem["code"]) == (401, "unauthorized")
    assert service.end() == 0


def test_keys_of_the_settings_are_never_shown(replsvc):
    replsvc.env["REPLSVC_SERVICE__KEYS"] = '["a-key-of-the-operator"]'
    service = Service(replsvc, lines=1)
    assert service.known["key"] is None
    assert service.request("GET", "/v1/sessions", key="a-key-of-the-operator")[0] == 200
    service.process.send_signal(signal.SIGTERM)
    out, err = service.process.communicate(timeout=60)
    assert (service.process.returncode, out) == (0, b"")
    assert b"a-key-of-the-operator" not in err


def test_a_cell_that_runs_is_ended_with_the_service(replsvc, gate):
    service = Service(replsvc)
    service.call(service.session(), gate.code, detach=True)
    with gate.wait():
        assert service.end() == 0
    assert replsvc.left_behind() == []


def test_a_second_signal_ends_it_at_once(replsvc, gate):
    replsvc.env["REPLSVC_SERVICE__STOP_DEADLINE_S"] = "600"
    service = Service(replsvc)
    service.call(service.session(), gate.code, detach=True)
    with gate.wait() as cell, stopped_reaper(cell) as reaper:
        service.process.send_signal(signal.SIGTERM)
        # It takes no more connections once it has heard the first.
        refused(service.known["url"])
        assert service.end() == 128 + signal.SIGTERM
        assert not service.ready_file.exists()
        assert no_process_left(replsvc, reaper)


def test_what_does_not_end_within_the_deadline_is_ended_by_force(replsvc, gate):
    replsvc.env["REPLSVC_SERVICE__STOP_DEADLINE_S"] = "0.5"
    service = Service(replsvc)
    service.call(service.session(), gate.code, detach=True)
    with gate.wait() as cell, stopped_reaper(cell) as reaper:
        service.process.send_signal(signal.SIGTERM)
        _, err = service.process.communicate(timeout=60)
        assert service.process.returncode == 70
        assert b"replsvc: not done within 0.5 s" in err
        assert not service.ready_file.exists()
        assert no_process_left(replsvc, reaper)


def refused(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=60).close()
        except ConnectionError:
            return


def test_extensions_of_the_command_line_are_there_in_every_session(replsvc, tmp_path):
    (tmp_path / "greet.py").write_text(
        "def code(opts): return 'greeting = %r' % opts['word']\n"
        "def description(opts): return 'Says ' + opts['word']\n"
    )
    service = Service(replsvc, "--ext", 'greet.py={"word": "hello"}')
    _, call = service.call(service.session(), "greeting")
    assert call["result"]["text/plain"] == "'hello'"
    chosen = service.session(extensions=[{"name": "greet", "opts": {"word": "bye"}}])
    _, call = service.call(chosen, "greeting")
    assert call["result"]["text/plain"] == "'bye'"
    assert service.end() == 0


def test_a_data_directory_is_kept_and_told_from_another_run(replsvc, tmp_path):
    service = Service(replsvc, "--data", "data")
    session = service.session(id="mine")
    service.call(session, "1")
    assert service.end() == 0
    service = Service(replsvc, "--data", "data")
    status, problem = service.request("POST", "/v1/sessions", {"id": "mine"})
    assert (status, problem["code"]) == (409, "id_conflict")
    assert service.end() == 0


def test_a_port_in_use_is_a_failure_that_says_so(replsvc):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = replsvc("serve", "--isolation", "none", "--port", port, "--ready-file", "ready")
    assert (done.returncode, done.stdout) == (70, b"")
    assert f"port {port} on 127.0.0.1 is in use.".encode() in done.stderr
    assert b"Traceback" not in done.stderr
    assert not (replsvc.cwd / "ready").exists()


def test_a_data_directory_that_another_service_has_is_a_failure(replsvc):
    service = Service(replsvc, "--data", "data")
    done = replsvc("serve", "--isolation", "none", "--port", "0", "--data", "data")
    assert (done.returncode, done.stdout) == (70, b"")
    assert b"data" in done.stderr
    assert b"Traceback" not in done.stderr
    assert service.end() == 0


@pytest.mark.parametrize("data", ["file", "/proc/none", "/dev/full/none"])
def test_a_data_directory_that_can_not_be_written_is_a_failure(replsvc, data):
    (replsvc.cwd / "file").write_text("")
    done = replsvc("serve", "--isolation", "none", "--port", "0", "--data", data)
    assert (done.returncode, done.stdout) == (70, b"")
    assert data.encode() in done.stderr
    assert b"Traceback" not in done.stderr
    assert replsvc.left_behind() == []


@pytest.mark.needs("mount")
def test_a_full_disk_is_a_failure_that_says_so(replsvc):
    data = replsvc.cwd / "data"
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(data)], check=True)
    try:
        with (data / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        done = replsvc("serve", "--isolation", "none", "--port", "0", "--data", "data")
    finally:
        subprocess.run(["umount", str(data)], check=True)
    assert (done.returncode, done.stdout) == (70, b"")
    assert b"data" in done.stderr
    assert b"space" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0"], b"0.0.0.0 can be reached from other machines"),
        (["--port", "70000"], b"--port: service.port: Input should be less than or equal to 65535"),
        (["--ready-file", "missing/ready"], b"--ready-file: missing/ready can't be written"),
        (["--ready-file", "."], b"--ready-file: . can't be written"),
        (["--ext", "missing.py"], b"'missing.py' does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_asked_wrongly_is_refused_before_anything_starts(replsvc, args, said):
    done = replsvc("serve", "--isolation", "none", *args)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert replsvc.left_behind() == []


@pytest.mark.needs("userns")
def test_it_does_not_run_code_unprotected_unless_that_is_asked_for(replsvc):
    done = replsvc.without_namespaces("serve", "--port", "0")
    assert done.returncode == 70
    assert b"isolation 'required' can't be given" in done.stderr
    assert b"--isolation none" in done.stderr


@pytest.mark.needs("userns")
def test_a_ready_file_of_an_earlier_run_misleads_nobody(replsvc):
    (replsvc.cwd / "ready").write_text('{"url": "http://127.0.0.1:1", "key": "old"}')
    refused = replsvc.without_namespaces("serve", "--port", "0", "--ready-file", "ready")
    assert refused.returncode == 70
    assert (
        replsvc(
            "serve", "--isolation", "none", "--host", "0.0.0.0", "--ready-file", "ready"
        ).returncode
        == 2
    )
    assert not (replsvc.cwd / "ready").exists()


def test_a_ready_file_that_somebody_else_wrote_meanwhile_is_left_alone(replsvc):
    service = Service(replsvc)
    Path(service.ready_file).unlink()
    service.ready_file.write_text("theirs")
    assert service.end() == 0
    assert service.ready_file.read_text() == "theirs"
