from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import components
import untested


def checks(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    return {check["subject"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_machine_where_sessions_run_is_healthy(replsvc):
    done = replsvc("doctor")
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, done.stderr) == (0, b"")
    assert lines[-1] == "Sessions can run here."
    assert any(line.startswith("ok       environment default: Python 3.") for line in lines)
    assert any(line[9:].startswith("isolation seccomp: ") for line in lines)
    assert any(line[9:].startswith("isolation user_namespace: ") for line in lines)
    assert replsvc.left_behind() == []


def test_it_agrees_with_a_session_that_does_run(replsvc):
    assert json.loads(replsvc("doctor", "--json").stdout)["ok"] is True
    assert replsvc.run("1").returncode == 0


def test_it_says_how_the_size_of_a_workspace_is_held(replsvc):
    found = checks(replsvc("doctor", "--json"))["workspace bound"]
    hard = components.missing("root") is None and components.missing("loop") is None
    assert found["state"] == ("ok" if hard else "missing")
    assert found["detail"].startswith("hard: " if hard else "soft: ")
    assert bool(found["remedy"]) is not hard
    assert not found["needed"]


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without any package."""
    path = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    return path


def test_an_environment_without_ipykernel_says_how_to_install_it(replsvc, bare):
    replsvc.env["REPLSVC_ENVIRONMENTS__DEFAULT__PYTHON"] = str(bare)
    done = replsvc("doctor", "--json")
    found = checks(done)["environment default"]
    assert (done.returncode, found["state"]) == (1, "missing")
    assert found["detail"].endswith(f"at {bare}/bin/python has no ipykernel")
    assert found["remedy"].startswith(f"Install it: {bare}/bin/python -m pip install 'ipykernel>=")


def test_an_ipykernel_that_was_not_tested_is_said_with_what_runs_instead(replsvc, tmp_path):
    python = untested.environment(tmp_path / "untested")
    replsvc.env["REPLSVC_ENVIRONMENTS__DEFAULT__PYTHON"] = python
    replsvc.env["REPLSVC_ISOLATION"] = "none"
    found = checks(replsvc("doctor", "--json"))["environment default"]
    assert (found["state"], found["needed"]) == ("missing", False)
    assert f"ipykernel {untested.VERSION}: setup code was tested with" in found["detail"]
    assert found["remedy"] == f"Install it: {python} -m pip install 'ipykernel>=6.29,<8'"


@pytest.mark.needs("root", "userns", "pidns", "seccomp")
def test_an_environment_that_sessions_may_not_read_says_what_lets_them(replsvc, tmp_path):
    path = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (site,) = path.glob("lib/python3*/site-packages")
    (site / "rest.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    replsvc.env["REPLSVC_ENVIRONMENTS__DEFAULT__PYTHON"] = str(path)
    assert checks(replsvc("doctor", "--json"))["environment default"]["state"] == "ok"
    site.chmod(0o700)
    done = replsvc("doctor", "--json")
    found = checks(done)["environment default"]
    assert (done.returncode, found["state"], found["needed"]) == (1, "missing", True)
    assert f"these may not read {site}," in found["detail"]
    assert found["remedy"] == f"chmod -R go+rX {site}"
    done = replsvc("run", "1")
    assert done.returncode == 70
    assert found["remedy"] in done.stderr.decode()
    replsvc.env["REPLSVC_ISOLATION"] = "none"
    assert checks(replsvc("doctor", "--json"))["environment default"]["state"] == "ok"


def test_a_named_environment_that_is_broken_does_not_hide_that_others_run(replsvc):
    replsvc.env["REPLSVC_ENVIRONMENTS__OTHER__PYTHON"] = "/missing/python"
    done = replsvc("doctor", "--json")
    found = checks(done)
    assert done.returncode == 0
    assert found["environment other"]["state"] == "missing"
    assert found["environment other"]["detail"] == "there is no Python at /missing/python."
    assert found["environment default"]["state"] == "ok"


@pytest.mark.parametrize("data", ["file", "file/below", "/proc/none"])
def test_a_data_directory_that_can_not_be_written_is_said(replsvc, data):
    (replsvc.cwd / "file").write_text("")
    replsvc.env["REPLSVC_DATA"] = data
    done = replsvc("doctor", "--json")
    assert done.returncode == 1
    assert checks(done)["data"]["state"] == "missing"
    assert data in checks(done)["data"]["detail"]


def test_a_data_directory_is_not_made_by_looking_at_it(replsvc):
    replsvc.env["REPLSVC_DATA"] = "deep/data"
    done = replsvc("doctor", "--json")
    assert checks(done)["data"]["state"] == "ok"
    assert not (replsvc.cwd / "deep").exists()


def test_a_temporary_directory_too_deep_for_sockets_is_said_and_sessions_agree(replsvc):
    # Sockets would fit below it, but not two directories further down, where they are.
    deep = replsvc.tmp / ("d" * (69 - len(str(replsvc.tmp))))
    deep.mkdir()
    replsvc.env["TMPDIR"] = str(deep)
    done = replsvc("doctor", "--json")
    assert done.returncode == 1
    assert checks(done)["sockets"]["state"] == "missing"
    assert "TMPDIR" in checks(done)["sockets"]["remedy"]
    done = replsvc.run("1")
    assert done.returncode == 70
    assert b"set TMPDIR" in done.stderr
    assert list(deep.iterdir()) == []


def test_a_temporary_directory_that_is_not_there_is_said(replsvc):
    replsvc.env["TMPDIR"] = "/dev/null/none"
    done = replsvc("doctor")
    assert b"Traceback" not in done.stderr
