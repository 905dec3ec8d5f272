"""Where control groups are mounted, and which of them we are in: pure readings of `/proc`."""

from __future__ import annotations

from dataclasses import dataclass

from . import mounts

WANTED = ("memory", "cpu", "cpuacct", "pids")


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy: `top` its mount, `own` the directory of the group we are in.

    `controllers` are those of version 1; those of version 2 are said by its files.
    """

    version: int
    controllers: frozenset[str]
    top: str
    own: str


def hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """What `/proc/self/mountinfo` and `/proc/self/cgroup` say; version 2 is the last."""
    groups: dict[frozenset[str], str] = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        groups[frozenset(names.split(",")) if names else frozenset()] = path
    found: dict[frozenset[str], Hierarchy] = {}
    for mount in mounts.table(mountinfo):
        if mount.kind == "cgroup2":
            version, controllers = 2, frozenset[str]()
        elif mount.kind == "cgroup":
            version, controllers = 1, frozenset(WANTED).intersection(mount.options)
            if not controllers:
                continue
        else:
            continue
        path = next((path for names, path in groups.items() if names >= controllers
                     and bool(names) == bool(controllers)), "/")  # fmt: skip
        own = _inside(path, mount)
        found.setdefault(controllers, Hierarchy(version, controllers, mount.target, own))
    return sorted(found.values(), key=lambda one: one.version)


def _inside(path: str, mount: mounts.Mount) -> str:
    """A group's directory. In a container the mount may show a part of the tree only."""
    top, root = mount.target, mount.root.rstrip("/")
    if path == root or path.startswith(root + "/"):
        return (top + path[len(root) :]).rstrip("/")
    return top
