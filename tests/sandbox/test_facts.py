"""Every layer is tried for real, says why it is missing and what to do, and leaves nothing."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import attempts_facts
import pytest
from inside import found

import components
from replsvc_kernels.sandbox import facts

MODULE = attempts_facts.__name__


def mounted() -> str:
    return Path("/proc/self/mountinfo").read_text()


def test_each_layer_is_told_in_order_with_a_reason() -> None:
    before = mounted()
    layers = facts.probe()
    assert tuple(layer.name for layer in layers) == facts.NAMES
    for layer in layers:
        assert layer.why
        assert bool(layer.remedy) is not layer.available
    assert mounted() == before


@pytest.mark.parametrize(
    ("layer", "component"),
    [("user_namespace", "userns"), ("seccomp", "seccomp"), ("landlock", "landlock"),
     ("cgroup_pids", "cgroups"), ("workspace_size", "loop")],
)  # fmt: skip
def test_what_is_said_agrees_with_what_tests_find(layer: str, component: str) -> None:
    said = {one.name: one.available for one in facts.probe()}
    assert said[layer] is (components.missing(component) is None)


@pytest.mark.parametrize("as_user", [False, True])
def test_trying_leaves_no_process_and_no_descriptor(as_user: bool) -> None:
    layers, children, same_descriptors = found(MODULE, "probed", as_user)
    assert [layer["name"] for layer in layers] == list(facts.NAMES)
    assert children == "none"
    assert same_descriptors


@pytest.mark.needs("root", "userns", "mount")
def test_a_user_that_owns_nothing_has_the_namespaces_and_not_what_root_must_give() -> None:
    layers: list[dict[str, Any]] = found(MODULE, "probed", True)[0]
    available = {layer["name"] for layer in layers if layer["available"]}
    assert {
        "user_namespace",
        "namespaces",
        "network",
        "read_only_root",
        "private_root",
    } <= available
    missing = {layer["name"]: layer["remedy"] for layer in layers if not layer["available"]}
    assert "usermod --add-subuids" in missing["user_ids"]
    assert "root" in missing["workspace_size"]
    assert "Delegate=yes" in missing["cgroup_memory"]


@pytest.mark.needs("userns")
@pytest.mark.parametrize(
    ("layer", "call", "number", "said"),
    [
        ("landlock", "landlock_create_ruleset", errno.ENOSYS, "Linux 5.13"),
        ("landlock", "landlock_create_ruleset", errno.EOPNOTSUPP, "lsm=landlock"),
        ("user_namespace", "unshare", errno.ENOSPC, ""),
        ("network", "unshare", errno.EPERM, ""),
        ("private_root", "mount", errno.EPERM, ""),
    ],
)
def test_a_call_that_is_refused_gives_the_reason_and_a_remedy(
    layer: str, call: str, number: int, said: str
) -> None:
    result = found(MODULE, "refused", layer, call, number)
    assert result["available"] is False
    assert os.strerror(number) in result["why"] or said == "lsm=landlock"
    assert result["remedy"]
    assert said in result["remedy"]


def test_on_other_systems_docker_is_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    layers = facts.probe()
    assert [layer.name for layer in layers] == list(facts.NAMES)
    assert not any(layer.available for layer in layers)
    assert all("Docker" in layer.remedy for layer in layers)
    assert facts.surroundings() == "macos"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"/proc/version": "Linux 5.15 (microsoft-standard-WSL2)"}, "wsl2"),
        ({"/proc/version": "Linux version 4.4.0-19041-Microsoft"}, "wsl1"),
        ({"/.dockerenv": ""}, "docker"),
        ({"/run/.containerenv": ""}, "podman"),
        ({"/run/systemd/container": "lxc"}, "container"),
        ({"/proc/1/environ": "container=systemd-nspawn"}, "container"),
        ({"/proc/version": "Linux version 6.1"}, "linux"),
    ],
)
def test_where_it_runs_is_read_from_the_marks_there(
    files: dict[str, str], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_text", lambda path: files.get(path, ""))
    monkeypatch.setattr(os.path, "exists", lambda path: path in files)
    assert facts.surroundings() == where


@pytest.mark.parametrize(
    ("file", "value", "remedy"),
    [
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "userns,"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ],
)
def test_a_switch_that_forbids_namespaces_is_named(
    file: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_text", lambda path: f"{value}\n" if path == file else "")
    monkeypatch.setattr(facts, "surroundings", lambda: "linux")
    assert remedy in facts._why_no_namespace(OSError(errno.EPERM, "no"))
