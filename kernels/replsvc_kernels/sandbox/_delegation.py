"""Which parts of the mounted hierarchies we may use, found by trying; version 2 is made ready."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from . import _cgroup_files as files
from ._hierarchies import Hierarchy

V2_CONTROLLERS = frozenset(("memory", "cpu", "pids"))
# Where those are who were in a group that from now on only has groups in it.
LEAF = "coordinator"


@dataclass
class Delegation:
    """Where groups can be made, and why others can't; `give_back` undoes what was moved."""

    parents: list[Hierarchy] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    emptied: list[str] = field(default_factory=list)
    enabled: list[tuple[str, str]] = field(default_factory=list)

    def give_back(self) -> None:
        """Put processes and controllers back as they were, where that can be done."""
        for path, controller in reversed(self.enabled):
            with contextlib.suppress(OSError):
                files.write(f"{path}/cgroup.subtree_control", f"-{controller}")
        for path in self.emptied:
            with contextlib.suppress(OSError):
                for pid in files.members(f"{path}/{LEAF}"):
                    files.write(f"{path}/cgroup.procs", str(pid))
                os.rmdir(f"{path}/{LEAF}")


def delegation(found: Sequence[Hierarchy]) -> Delegation:
    """Try each hierarchy; a version 2 without controllers is taken for ending groups at once."""
    result = Delegation()
    for one in found:
        if one.version == 1:
            if (reason := _cannot_make(one.own)) is None:
                result.parents.append(one)
            else:
                result.missing.update(dict.fromkeys(one.controllers, reason))
    for one in found:
        if one.version == 2:
            _use_second_version(one, result)
    if any(os.path.exists(f"{one.own}/cpu.stat") for one in result.parents if one.version == 2):
        # Version 2 counts processor time in every group: one hierarchy less to join.
        result.parents = [one for one in result.parents if one.controllers != {"cpuacct"}]
        result.missing.pop("cpuacct", None)
    there = frozenset[str]().union(*(one.controllers for one in result.parents))
    for name in V2_CONTROLLERS - there:
        result.missing.setdefault(name, "no hierarchy with it is mounted")
    return result


def _use_second_version(one: Hierarchy, result: Delegation) -> None:
    reasons: list[str] = []
    for place in _places(one):
        controllers = _listed(f"{place}/cgroup.controllers") & V2_CONTROLLERS
        reason = _cannot_make(place) or _cannot_enable(place, one.top, controllers, result)
        if reason is None:
            result.parents.append(replace(one, own=place, controllers=controllers))
            return
        reasons.append(reason)
    there = _listed(f"{one.top}/cgroup.controllers") & V2_CONTROLLERS
    result.missing.update(dict.fromkeys(there, reasons[0]))


def _places(one: Hierarchy) -> list[str]:
    own = os.path.dirname(one.own) if os.path.basename(one.own) == LEAF else one.own
    # Not root, and not in a unit that is ours: nowhere else may we write either.
    return [own] if own == one.top or os.geteuid() != 0 else [own, one.top]


def _cannot_make(parent: str) -> str | None:
    """Why no group can be made below `parent`; None when one was."""
    path = f"{parent}/probe-{secrets.token_hex(6)}"
    try:
        os.mkdir(path)
        os.rmdir(path)
    except OSError as error:
        return f"{parent}: {error.strerror}"
    return None


def _cannot_enable(
    place: str, top: str, controllers: frozenset[str], result: Delegation
) -> str | None:
    """Why groups below `place` can't have these controllers; None when now they have."""
    control = f"{place}/cgroup.subtree_control"
    enabled: list[tuple[str, str]] = []
    emptied: list[str] = []
    for name in sorted(controllers - _listed(control)):
        try:
            if not enabled and not emptied and _must_be_empty(place):
                if (reason := _cannot_empty(place, top)) is not None:
                    return reason
                emptied.append(place)
            files.write(control, f"+{name}")
            enabled.append((place, name))
        except OSError as error:
            Delegation(emptied=emptied, enabled=enabled).give_back()
            return f"{control}: {error.strerror}"
    result.enabled += enabled
    result.emptied += emptied
    return None


def _must_be_empty(place: str) -> bool:
    # The machine's topmost group, the one without a type, may have both processes and groups.
    return os.path.exists(f"{place}/cgroup.type") and bool(files.members(place))


def _cannot_empty(place: str, top: str) -> str | None:
    """Move all processes of a group into one below it, if they are ours to move; else why not."""
    others = [pid for pid in files.members(place) if pid != os.getpid()]
    ours = place == top or (os.geteuid() != 0 and os.stat(place).st_uid == os.geteuid())
    if others and not ours:
        return f"{place}: {len(others)} other processes are in it, and it is not delegated to us"
    leaf = f"{place}/{LEAF}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf)
    for _ in range(100):  # they may fork meanwhile
        pids = files.members(place)
        if not pids:
            return None
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                files.write(f"{leaf}/cgroup.procs", str(pid))
    return f"{place}: processes in it fork faster than they can be moved"


def _listed(path: str) -> frozenset[str]:
    return frozenset((files.read(path) or "").split())
