from __future__ import annotations

import json
import os

import pytest


def test_it_shows_each_value_and_where_it_comes_from(replsvc, tmp_path):
    (tmp_path / "replsvc.toml").write_text("max_sessions = 7\n")
    replsvc.env["REPLSVC_SERVICE__PORT"] = "9"
    done = replsvc("config")
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.decode().splitlines()}
    assert done.returncode == 0
    assert lines["max_sessions"] == ["7", "replsvc.toml"]
    assert lines["service.port"] == ["9", "REPLSVC_SERVICE__PORT"]
    assert lines["isolation"] == ['"best"', "default"]


def test_json_has_the_same(replsvc):
    replsvc.env["REPLSVC_LIMITS__TIMEOUT_S"] = "none"
    settings = json.loads(replsvc("config", "--json").stdout)
    assert settings["limits.timeout_s"] == {"value": None, "from": "REPLSVC_LIMITS__TIMEOUT_S"}
    assert settings["max_sessions"] == {"value": 1000, "from": "default"}


def test_keys_are_hidden(replsvc):
    replsvc.env["REPLSVC_SERVICE__KEYS"] = '["secret-key"]'
    for args in ([], ["--json"]):
        done = replsvc("config", *args)
        assert done.returncode == 0
        assert b"service.keys" in done.stdout
        assert b"secret-key" not in done.stdout + done.stderr


def test_a_wrong_name_exits_2_with_the_nearest_in_every_command(replsvc, tmp_path):
    (tmp_path / "replsvc.toml").write_text("[limits]\ntimeouts = 1\n")
    for args in (["config"], ["doctor"], ["run", "1"], ["serve"]):
        done = replsvc(*args)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(
            b"replsvc: replsvc.toml: there is no setting 'limits.timeouts'. "
            b"Did you mean limits.timeout_s?"
        )


def test_a_file_is_named_by_its_flag(replsvc, tmp_path):
    (tmp_path / "other.toml").write_text("max_sessions = 3\n")
    settings = json.loads(replsvc("config", "--json", "--config", "other.toml").stdout)
    assert settings["max_sessions"] == {"value": 3, "from": "other.toml"}


@pytest.mark.parametrize("command", ["config", "doctor"])
def test_a_reader_that_has_seen_enough_is_no_fault(replsvc, tmp_path, command):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with (tmp_path / "stderr").open("wb") as stderr:
            done = replsvc(command, stdout=writing, stderr=stderr)
    finally:
        os.close(writing)
    assert (done.returncode, (tmp_path / "stderr").read_bytes()) == (141, b"")
