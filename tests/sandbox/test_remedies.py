"""What doctor says to do on systems that this test does not run on: from facts recorded there."""

from __future__ import annotations

import errno
import os

import pytest

from replsvc_kernels.sandbox import remedies
from replsvc_kernels.sandbox.remedies import Machine

APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
MOST = "/proc/sys/user/max_user_namespaces"
GROUPS = frozenset({"/sys/fs/cgroup"})
SYSTEMD = GROUPS | {"/run/systemd/system"}
REFUSED = OSError(errno.EPERM, "unshare(NEWUSER): Operation not permitted")
SHELL = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n"
UNIT = "0::/system.slice/replsvc.service\n"

UBUNTU = Machine(texts={APPARMOR: "1\n", CLONE: "1\n", MOST: "62500\n",
                        "/proc/version": "Linux version 6.8.0-45-generic (Ubuntu 13.2.0)",
                        "/proc/self/cgroup": SHELL}, marks=SYSTEMD)  # fmt: skip
DEBIAN_10 = Machine(texts={CLONE: "0\n", MOST: "62500\n", "/proc/self/cgroup": SHELL},
                    marks=SYSTEMD)  # fmt: skip
CENTOS_7 = Machine(texts={MOST: "0\n", "/proc/version": "Linux version 3.10.0-1160.el7.x86_64"},
                   marks=SYSTEMD)  # fmt: skip
SERVICE = Machine(user=998, texts={MOST: "62500\n", "/proc/self/cgroup": UNIT}, marks=SYSTEMD)
DOCKER = Machine(user=0, texts={MOST: "62500\n"}, marks=GROUPS | {"/.dockerenv"})
PODMAN = Machine(user=0, texts={"/proc/1/environ": "container=podman\0"},
                 marks=GROUPS | {"/run/.containerenv"})  # fmt: skip
LXC = Machine(user=0, texts={"/run/systemd/container": "lxc"}, marks=SYSTEMD)
WSL_2 = Machine(texts={"/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2",
                       MOST: "62500\n"}, marks=GROUPS)  # fmt: skip
WSL_1 = Machine(texts={"/proc/version": "Linux version 4.4.0-19041-Microsoft"})
MACOS = Machine(platform="darwin")
WINDOWS = Machine(platform="win32")
ALPINE = Machine(texts={"/proc/version": "Linux version 6.6.49-0-lts", MOST: "62500\n"},
                 marks=GROUPS)  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "where"),
    [(UBUNTU, "linux"), (DOCKER, "docker"), (PODMAN, "podman"), (LXC, "container"),
     (Machine(texts={"/proc/1/environ": "container=systemd-nspawn"}), "container"),
     (WSL_2, "wsl2"), (WSL_1, "wsl1"), (MACOS, "macos"), (WINDOWS, "other")],
)  # fmt: skip
def test_where_it_is_is_told_from_the_marks_there(machine: Machine, where: str) -> None:
    assert remedies.surroundings(machine) == where


@pytest.mark.parametrize(
    ("machine", "remedy"),
    [
        (UBUNTU, "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile "
                 "for this Python with the rule `userns,`"),
        (DEBIAN_10, "sysctl -w kernel.unprivileged_userns_clone=1"),
        (CENTOS_7, "sysctl -w user.max_user_namespaces=10000"),
        (DOCKER, "start the container so that it may have some: docker run --security-opt "
                 "seccomp=unconfined --security-opt apparmor=unconfined "
                 "--security-opt systempaths=unconfined"),
        (WSL_1, "upgrade to WSL 2: wsl --set-version DISTRIBUTION 2"),
        (ALPINE, "ask whoever runs this machine which policy (seccomp, SELinux, AppArmor) "
                 "forbids it"),
    ],
)  # fmt: skip
def test_namespaces_that_are_forbidden_have_one_remedy(machine: Machine, remedy: str) -> None:
    assert remedies.no_namespace(machine, REFUSED) == remedy


def test_a_switch_is_not_named_where_it_allows_or_is_not_there() -> None:
    for machine in (SERVICE, ALPINE, Machine(texts={APPARMOR: "0\n", CLONE: "1\n"})):
        assert "sysctl -w" not in remedies.no_namespace(machine, REFUSED)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "user.max_"), (errno.EUSERS, "user.max_"), (errno.EINVAL, "built with")],
)
def test_the_error_tells_what_no_switch_does(number: int, remedy: str) -> None:
    assert remedy in remedies.no_namespace(ALPINE, OSError(number, os.strerror(number)))


def test_a_covered_proc_is_named_but_in_containers_where_an_option_uncovers_it() -> None:
    error = OSError(errno.EPERM, "mount(proc on /x/session/proc): Operation not permitted")
    assert "mounted over parts of /proc" in remedies.no_root(ALPINE, error)
    assert "systempaths=unconfined" in remedies.no_root(DOCKER, error)
    assert remedies.no_root(DEBIAN_10, REFUSED) == remedies.no_namespace(DEBIAN_10, REFUSED)


@pytest.mark.parametrize(
    ("machine", "why", "remedy"),
    [
        (UBUNTU, "there is no program newuidmap (package uidmap or shadow-utils)", "apt install"),
        (UBUNTU, "/etc/subuid has no line for me", "usermod --add-subuids 100000-165535"),
        (UBUNTU, "the user 64321 has no name in /etc/passwd", "/etc/subuid"),
        (UBUNTU, "newuidmap: write to uid_map failed: Operation not permitted", "nosuid"),
        (DOCKER, "there is no program newuidmap", "run as root in the container"),
    ],
)
def test_ids_that_are_missing_have_one_remedy(machine: Machine, why: str, remedy: str) -> None:
    assert remedy in remedies.no_ids(machine, why)


@pytest.mark.parametrize(
    ("machine", "remedy"),
    [
        (UBUNTU, "systemd-run --user --scope -p Delegate=yes COMMAND"),
        (SERVICE, "Delegate=memory cpu pids in the unit's [Service]"),
        (DOCKER, "--cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw"),
        (WSL_2, "systemd=true in /etc/wsl.conf"),
        (ALPINE, "have root make you a group"),
        (Machine(user=0, marks=GROUPS), "mount -o remount,rw /sys/fs/cgroup"),
        (Machine(), "mount -t cgroup2 none /sys/fs/cgroup"),
    ],
)
def test_control_groups_that_are_missing_have_one_remedy(machine: Machine, remedy: str) -> None:
    assert remedy in remedies.no_groups(machine)


def test_systems_without_linux_are_shown_the_way_to_one() -> None:
    assert "limactl" in remedies.no_linux(MACOS)
    assert "WSL 2" in remedies.no_linux(WINDOWS)


def test_this_machine_can_be_read() -> None:
    machine = remedies.read()
    assert machine.user == os.geteuid()
    assert "Linux" in machine.text("/proc/version")
    assert remedies.surroundings(machine) not in ("macos", "other")
