"""Control groups, versions 1, 2 and both at once: memory without swap, cpu, processes, per session.

Used by whoever owns the machine's groups, the coordinator and not the fork server; a session joins
by descriptors that were opened for it. All calls are short and don't wait, but `remove`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _cgroup_files as files
from ._cgroup_files import Directory
from ._delegation import Delegation, delegation
from ._hierarchies import hierarchies

PREFIX = "replsvc"
_REMEDY = (
    "run as root, or with a part of the tree that is delegated to you: "
    "systemd-run --user --scope -p Delegate=yes COMMAND"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CgroupsUnavailableError(Exception):
    """No control group can be made here: `missing` says why for each controller."""

    def __init__(self, missing: Mapping[str, str], remedy: str) -> None:
        reasons = "; ".join(sorted(set(missing.values())))
        super().__init__(f"no control groups: {reasons}. To have them, {remedy}")
        self.missing = dict(missing)
        self.remedy = remedy


@dataclass(frozen=True)
class Limits:
    """What a session may use; None sets no limit. `cpu_weight` is 1 to 10,000, a fair share 100."""

    memory_bytes: int | None = None
    processes: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None


@dataclass(frozen=True)
class Usage:
    """What a session uses and has used; None where this machine does not count it."""

    memory_bytes: int | None
    memory_peak_bytes: int | None
    cpu_s: float | None
    processes: int | None
    processes_peak: int | None


@dataclass(frozen=True)
class Events:
    """How often limits were hit, each with the limit and the most that was used."""

    oom_kills: int
    memory_limit_bytes: int | None
    memory_peak_bytes: int | None
    processes_refused: int
    processes_limit: int | None
    processes_peak: int | None


class CgroupRoot:
    """Our own part of the tree, `<prefix>-<random>`, locked while this process has it open.

    A child that was forked without an exec has it open too: it must not outlive us, or close it.
    Made by `detect`. `controllers` are those that work here, `missing` says why for the others.
    """

    def __init__(self, delegated: Delegation, prefix: str) -> None:
        self.missing = dict(delegated.missing)
        self._delegated = delegated
        self._our_place = _where_we_are()
        self._prefix = prefix
        self._name = f"{prefix}-{secrets.token_hex(6)}"
        self._directories: list[Directory] = []
        self._locks: list[int] = []
        try:
            for parent in delegated.parents:
                path = f"{parent.own}/{self._name}"
                self._locks.append(files.make_and_lock(path))
                self._directories.append(Directory(path, parent.version, parent.controllers))
                if parent.version == 2:
                    for name in sorted(parent.controllers):
                        files.write(f"{path}/cgroup.subtree_control", f"+{name}")
        except BaseException:
            self.close()
            raise

    @property
    def controllers(self) -> frozenset[str]:
        """What is limited and counted here: of memory, cpu, cpuacct (version 1), pids."""
        return frozenset[str]().union(*(one.controllers for one in self._directories))

    @property
    def paths(self) -> tuple[str, ...]:
        """The directory in each hierarchy."""
        return tuple(one.path for one in self._directories)

    @classmethod
    def detect(
        cls, prefix: str = PREFIX, mountinfo: str | None = None, own_groups: str | None = None
    ) -> CgroupRoot:
        """Make our part of the tree with whatever controllers can be had; `close` removes it.

        Removes what owners left that are no more. On version 2 the processes of the group that we
        are in are moved into one below it, when they are ours to move. The texts are those of
        `/proc/self/mountinfo` and `/proc/self/cgroup`. Raises `CgroupsUnavailableError`.
        """
        if not _NAME.fullmatch(prefix):
            raise ValueError(f"{prefix!r} can't begin the name of a control group")
        if mountinfo is None:
            mountinfo = files.read("/proc/self/mountinfo") or ""
        if own_groups is None:
            own_groups = files.read("/proc/self/cgroup") or ""
        delegated = delegation(hierarchies(mountinfo, own_groups))
        if not any(one.controllers for one in delegated.parents):
            raise CgroupsUnavailableError(delegated.missing, _REMEDY)
        try:
            root = cls(delegated, prefix)
        except OSError as error:
            missing = dict.fromkeys(("memory", "cpu", "pids"), str(error))
            raise CgroupsUnavailableError(missing, _REMEDY) from None
        root.sweep()
        return root

    def holdings(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        """What `adopt` needs in another process, as plain JSON and the locks' descriptors."""
        directories = [
            [one.path, one.version, sorted(one.controllers)] for one in self._directories
        ]
        return {"name": self._name, "directories": directories}, tuple(self._locks)

    @classmethod
    def adopt(
        cls, facts: Mapping[str, Any], locks: Sequence[int], prefix: str = PREFIX
    ) -> CgroupRoot:
        """Our part of the tree as another process had it; the descriptors are ours to close."""
        root = cls.__new__(cls)
        mountinfo = files.read("/proc/self/mountinfo") or ""
        own = files.read("/proc/self/cgroup") or ""
        root._delegated = delegation(hierarchies(mountinfo, own))
        root.missing = dict(root._delegated.missing)
        root._our_place = _where_we_are()
        root._prefix, root._name, root._locks = prefix, facts["name"], list(locks)
        root._directories = [
            Directory(path, version, frozenset(controllers))
            for path, version, controllers in facts["directories"]
        ]
        return root

    def reopen(self, session_id: str, limits: Limits) -> Cgroup:
        """The group that `create` made, by whoever had this part of the tree before."""
        name = f"s-{session_id}"
        return Cgroup(
            [Directory(f"{d.path}/{name}", d.version, d.controllers) for d in self._directories],
            limits,
        )

    def hurry(self) -> None:
        """Somebody is about to join a group: what the system does for the first one, it does now.

        The first to move after a pause waits, some 10 ms, until every processor has noticed that
        moves are under way; those who come soon after don't. We move to where we are. Waits that
        long, without using a processor: call it in a thread.
        """
        if self._our_place is not None:
            with contextlib.suppress(OSError):
                files.write(f"{self._our_place}/cgroup.procs", "0")

    def create(self, session_id: str, limits: Limits) -> Cgroup:
        """Make the group of a session, with its limits set. Raises `ValueError`, `OSError`."""
        if not _NAME.fullmatch(session_id):
            raise ValueError(f"{session_id!r} can't be the name of a control group")
        made: list[Directory] = []
        try:
            for directory in self._directories:
                # Their own prefix: no session can be called like one of the group's files.
                made.append(directory.child(f"s-{session_id}"))
                if limits.memory_bytes is not None:
                    made[-1].limit_memory(limits.memory_bytes)
                if limits.processes is not None:
                    made[-1].limit_processes(limits.processes)
                made[-1].limit_cpu(limits.cpus, limits.cpu_weight)
        except BaseException:
            for directory in made:
                with contextlib.suppress(OSError):
                    os.rmdir(directory.path)
            raise
        return Cgroup(made, limits)

    def sweep(self) -> list[str]:
        """End and remove what owners with our prefix left that are no more; returns their paths."""
        swept = []
        for parent in self._delegated.parents:
            for path in files.below(parent.own):
                name = os.path.basename(path)
                theirs = name.startswith(f"{self._prefix}-") and name != self._name
                if theirs and files.remove_if_abandoned(path):
                    swept.append(path)
        return swept

    def close(self) -> None:
        """End what is in sessions' groups, remove them and our part of the tree. Idempotent."""
        for directory in self._directories:
            files.remove_tree(directory.path)
        for lock in self._locks:
            os.close(lock)
        self._directories, self._locks = [], []
        self._delegated.give_back()


def _where_we_are() -> str | None:
    """The directory of a group that we are in; None where it can't be seen."""
    mountinfo, own = files.read("/proc/self/mountinfo") or "", files.read("/proc/self/cgroup") or ""
    for one in hierarchies(mountinfo, own):
        # In a container a part of the tree is seen, and we may be elsewhere.
        if os.getpid() in files.members(one.own):
            return one.own
    return None


class Cgroup:
    """The group of one session, in each hierarchy."""

    def __init__(self, directories: list[Directory], limits: Limits) -> None:
        self._directories = directories
        self._limits = limits

    @property
    def paths(self) -> tuple[str, ...]:
        """The directory in each hierarchy."""
        return tuple(one.path for one in self._directories)

    def add(self, pid: int) -> None:
        """Move a process, by its pid as we see it, into the group. Raises `OSError`."""
        for path in self.paths:
            files.write(f"{path}/cgroup.procs", str(pid))

    def join_descriptors(self) -> list[int]:
        """Descriptors by which a process joins itself, with our rights and not its own: `join`.

        The caller closes them. A session's own code must not get them.
        """
        opened: list[int] = []
        try:
            for path in self.paths:
                flags = os.O_WRONLY | os.O_CLOEXEC
                opened.append(os.open(f"{path}/cgroup.procs", flags))
        except BaseException:
            for descriptor in opened:
                os.close(descriptor)
            raise
        return opened

    def usage(self) -> Usage:
        """What the session uses and has used, read now."""
        return Usage(
            memory_bytes=self._first("memory_now"),
            memory_peak_bytes=self._first("memory_peak"),
            cpu_s=self.cpu_s(),
            processes=self._first("pids_now"),
            processes_peak=self._first("pids_peak"),
        )

    def cpu_s(self) -> float | None:
        """Seconds of processor time used, by those who have ended too; None if not counted."""
        return next((s for one in self._directories if (s := one.cpu_s()) is not None), None)

    def refusals(self) -> tuple[int, int]:
        """How many processes ended for want of memory, and how many could not be started.

        What of `events` changes when a limit is hit: cheap enough to be asked often.
        """
        return self._first("oom_kills") or 0, self._first("pids_refused") or 0

    def events(self) -> Events:
        """Which limits were hit, read now; also when all processes have ended, until `remove`."""
        oom_kills, processes_refused = self.refusals()
        return Events(
            oom_kills=oom_kills,
            memory_limit_bytes=self._limits.memory_bytes,
            memory_peak_bytes=self._first("memory_peak"),
            processes_refused=processes_refused,
            processes_limit=self._limits.processes,
            processes_peak=self._first("pids_peak"),
        )

    def kill(self) -> None:
        """Send SIGKILL to all that is in the group, which from then on can't fork; no waiting.

        Where the kernel has no `cgroup.kill` a process can slip through while it forks; `remove`
        goes on until nobody is left.
        """
        files.kill(self.paths)

    def remove(self, timeout_s: float = 2.0) -> None:
        """End what is still in the group, wait until it is empty, remove it. Idempotent.

        Does not wait when nothing is in it. Raises `TimeoutError` with what did not end.
        """
        files.remove(self.paths, timeout_s)

    def _first(self, question: str) -> int | None:
        answers = (one.number(question) for one in self._directories)
        return next((answer for answer in answers if answer is not None), None)


def join(descriptors: list[int]) -> None:
    """Move this process into the group whose `join_descriptors` these are. Raises `OSError`."""
    for descriptor in descriptors:
        os.write(descriptor, b"0")
