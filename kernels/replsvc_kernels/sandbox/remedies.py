"""Why a machine does not give a layer, and the one thing to do: from recorded facts, nothing tried.

`read` records what files of the machine say; all else are pure functions of that.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, field

# Each says, with this value, that namespaces are not for ordinary users; and what changes it.
SWITCHES = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for this "
        "Python with the rule `userns,`",
    ),
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "sysctl -w user.max_user_namespaces=10000",
    ),
}
FILES = (
    *SWITCHES,
    "/proc/version",
    "/proc/1/environ",
    "/proc/1/comm",
    "/proc/self/cgroup",
    "/run/systemd/container",
)
MARKS = ("/.dockerenv", "/run/.containerenv", "/run/systemd/system", "/sys/fs/cgroup")

CONTAINERS = ("docker", "podman", "container")
_ON_MACOS = (
    "a session needs a Linux kernel: run replsvc in a virtual machine (limactl start && "
    "limactl shell default) or in Docker"
)
_CONTAINER_OPTIONS = (
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


@dataclass(frozen=True)
class Machine:
    """What was recorded: the platform, our user, files' texts by path, and which marks exist."""

    platform: str = "linux"
    user: int = 1000
    texts: dict[str, str] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()

    def text(self, path: str) -> str:
        """What a file said; empty when it was not there."""
        return self.texts.get(path, "")


def read() -> Machine:
    """Record the facts of this machine."""
    texts = {path: text for path in FILES if (text := _text(path))}
    marks = frozenset(path for path in MARKS if os.path.exists(path))
    return Machine(sys.platform, os.geteuid(), texts, marks)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def surroundings(machine: Machine) -> str:
    """Where it is: `macos`, `other`, `wsl1`, `wsl2`, `docker`, `podman`, `container` or `linux`."""
    if machine.platform == "darwin":
        return "macos"
    if machine.platform != "linux":
        return "other"
    version = machine.text("/proc/version").lower()
    if "microsoft" in version:
        return "wsl2" if "wsl2" in version else "wsl1"
    if "/.dockerenv" in machine.marks:
        return "docker"
    if "/run/.containerenv" in machine.marks:
        return "podman"
    manager = machine.text("/run/systemd/container")
    if manager or "container=" in machine.text("/proc/1/environ"):
        return "container"
    return "linux"


def no_linux(machine: Machine) -> str:
    """What to do where there is no Linux kernel at all."""
    if surroundings(machine) == "macos":
        return _ON_MACOS
    return "a session needs a Linux kernel: run replsvc in WSL 2, a virtual machine or in Docker"


def no_namespace(machine: Machine, error: OSError) -> str:
    """What to do where a namespace can't be entered."""
    where = surroundings(machine)
    if where in CONTAINERS:
        program = "podman" if where == "podman" else "docker"
        return f"start the container so that it may have some: {program} run {_CONTAINER_OPTIONS}"
    if where == "wsl1":
        return "upgrade to WSL 2: wsl --set-version DISTRIBUTION 2"
    for path, (value, remedy) in SWITCHES.items():
        if machine.text(path).strip() == value:
            return remedy
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        return "all are in use: raise what `sysctl -a` says for user.max_*_namespaces"
    if error.errno == errno.EINVAL:
        return "use a kernel that is built with namespaces"
    return "ask whoever runs this machine which policy (seccomp, SELinux, AppArmor) forbids it"


def no_root(machine: Machine, error: OSError) -> str:
    """What to do where namespaces can be entered, and a session's own files not be mounted."""
    if surroundings(machine) not in CONTAINERS and "mount(proc" in str(error):
        return "something is mounted over parts of /proc: unmount it, or run as root"
    return no_namespace(machine, error)


def no_ids(machine: Machine, why: str) -> str:
    """What to do where sessions have no ids of their own; `why` is what was found."""
    if surroundings(machine) in CONTAINERS:
        return "run as root in the container, which is not the machine's root"
    if "no program" in why:
        return "install newuidmap: apt install uidmap, or dnf install shadow-utils"
    if "has no line for" in why:
        return (
            "give your user a range: usermod --add-subuids 100000-165535 "
            '--add-subgids 100000-165535 "$USER"'
        )
    if "no name" in why:
        return "give your user a name in /etc/passwd, and a range in /etc/subuid and /etc/subgid"
    return "see that newuidmap and newgidmap are set-user-id root, and not on a nosuid mount"


def no_groups(machine: Machine) -> str:
    """What to do where there is no control group of ours to make others in."""
    where = surroundings(machine)
    if where in CONTAINERS:
        return (
            "give the container its own part of the tree, to write to: "
            "--cgroupns=private -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
        )
    if "/sys/fs/cgroup" not in machine.marks:
        return "mount -t cgroup2 none /sys/fs/cgroup"
    systemd = "/run/systemd/system" in machine.marks
    if where == "wsl2" and not systemd:
        return "let WSL start systemd: [boot] systemd=true in /etc/wsl.conf, and wsl --shutdown"
    if machine.user == 0 and not systemd:
        return (
            "remount /sys/fs/cgroup so that it can be written: mount -o remount,rw /sys/fs/cgroup"
        )
    if not systemd:
        return "run as root, or have root make you a group and move you there (chown it to you)"
    if ".service" in machine.text("/proc/self/cgroup") and "user.slice" not in machine.text(
        "/proc/self/cgroup"
    ):
        return "have systemd delegate it: Delegate=memory cpu pids in the unit's [Service]"
    return "start it with a part of the tree: systemd-run --user --scope -p Delegate=yes COMMAND"
