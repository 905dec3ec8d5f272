from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from test_cli_serve import Service

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
def data():
    path = Path(tempfile.mkdtemp(prefix="replsvc-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def serve(replsvc, data, *more):
    return Service(replsvc, "--isolation", "best", "--data", str(data), *more)


def test_a_service_that_is_told_to_stop_keeps_sessions_that_survive(replsvc, data):
    first = serve(replsvc, data)
    session = first.session(survive_restart=True)
    other = first.session()
    assert first.call(session, "x = 41")[0] == first.call(other, "x = 1")[0] == 200
    assert first.end() == 0

    second = serve(replsvc, data)
    status, call = second.call(session, "x + 1")
    assert (status, call["result"]["text/plain"]) == (200, "42")
    assert second.call(other, "x")[0] == 404
    status, _ = second.request("DELETE", f"/v1/sessions/{session}")
    assert status in (200, 204)
    # Nobody is left to be kept, and so is nothing of it.
    assert second.end() == 0
    assert not (data / "holder").exists()
    assert replsvc.left_behind() == []


def test_it_ends_them_where_the_settings_say_so(replsvc, data):
    (replsvc.cwd / "replsvc.toml").write_text("[service]\nkeep_survivors = false\n")
    service = serve(replsvc, data)
    session = service.session(survive_restart=True)
    status, call = service.call(session, "import os; os.path.exists('/')")
    assert (status, call["result"]["text/plain"]) == (200, "True")
    assert service.end(signal.SIGINT) == 0
    assert not (data / "holder").exists()
    assert replsvc.left_behind() == []
