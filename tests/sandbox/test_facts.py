"""Every layer is tried for real, says why it is missing and what to do, and leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
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
     ("cgroup_pids", "cgroups")],
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
    assert missing["user_ids"]
    assert missing["cgroup_memory"]


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


def test_on_other_systems_there_is_no_layer_and_linux_is_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    layers = facts.probe()
    assert [layer.name for layer in layers] == list(facts.NAMES)
    assert not any(layer.available for layer in layers)
    assert all("limactl" in layer.remedy for layer in layers)


WITHOUT_MOUNTING = ("/usr/bin/setpriv", "--bounding-set=-sys_admin")


@pytest.mark.needs("root", "userns", "mount", "setpriv")
def test_a_containers_root_who_may_not_mount_has_all_but_the_groups_all_the_same() -> None:
    start = "import json, replsvc_kernels.sandbox.facts as f; f.main()"
    command = [*WITHOUT_MOUNTING, sys.executable, "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    missing = {one["name"]: one["why"] for one in json.loads(done.stdout) if not one["available"]}
    assert {name for name in missing if not name.startswith("cgroup_")} == set()
