"""What processes try against their control group; run by inside.py.

Attacks on processes and memory run in a pid namespace of their own and in a group with a bound, and
only when both were seen from inside.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sessions import attempted, become_user, forked

from replsvc_kernels.sandbox import namespaces
from replsvc_kernels.sandbox.cgroups import Cgroup, CgroupRoot, Limits, join

PREFIX = "replsvc-test"
MB = 1 << 20


@contextlib.contextmanager
def group(limits: Limits, *, at_once: bool = True) -> Iterator[tuple[CgroupRoot, Cgroup]]:
    """A group, one that the kernel can't end at once if not `at_once`: version 1 alone."""
    mountinfo = Path("/proc/self/mountinfo").read_text().splitlines()
    if not at_once:
        mountinfo = [line for line in mountinfo if " - cgroup2 " not in line]
    root = CgroupRoot.detect(prefix=PREFIX, mountinfo="\n".join(mountinfo))
    try:
        yield root, root.create("attempt", limits)
    finally:
        root.close()


def sandboxed(cgroup: Cgroup, limits: Limits, attack: Callable[[], Any]) -> Any:
    """Run `attack` in a pid namespace of its own and in the group, if both are seen from inside."""

    def below() -> Any:
        descriptors = cgroup.join_descriptors()
        namespaces.unshare(namespaces.NEWPID)

        def init() -> Any:
            assert os.getpid() == 1, "not tried: not in a pid namespace of its own"
            join(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            usage = cgroup.usage()
            assert usage.processes == 1, f"not tried: not alone in the group, {usage}"
            bounds = []
            for path in cgroup.paths:
                with contextlib.suppress(FileNotFoundError), open(f"{path}/pids.max") as file:
                    bounds.append(file.read().strip())
            assert bounds == [str(limits.processes)], "not tried: no bound"
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            return attack()

        return forked(init)

    return forked(below)


def fork_bomb(at_once: bool) -> Any:
    """Fork until it fails, each child as well; a neighbour in a group of its own goes on."""
    limits = Limits(memory_bytes=256 * MB, processes=20)

    def bomb() -> str:
        reading, writing = os.pipe()

        def more() -> None:
            while True:
                if os.fork() == 0:
                    with contextlib.suppress(OSError):
                        more()
                    os.write(writing, b"!")
                    signal.pause()

        outcome = attempted(more)
        os.close(writing)
        os.read(reading, 1)
        return outcome

    with group(limits, at_once=at_once) as (root, cgroup):
        neighbour = root.create("neighbour", limits)
        outcome = sandboxed(cgroup, limits, bomb)
        well = sandboxed(neighbour, limits, lambda: forked(lambda: "well"))
        events = cgroup.events()
        cgroup.remove()
        return {
            "outcome": outcome,
            "neighbour": well,
            "neighbour refused": neighbour.events().processes_refused,
            "refused": events.processes_refused > 0,
            "limit": events.processes_limit,
            "peak": events.processes_peak,
        }


def memory() -> Any:
    """Take more memory than there may be, in a child; its parent, in the group too, lives."""
    limits = Limits(memory_bytes=48 * MB, processes=10)

    def hog() -> list[int]:
        pid = os.fork()
        if pid == 0:
            block = mmap.mmap(-1, 512 * MB)
            for place in range(0, len(block), 4096):
                block[place] = 1
            os._exit(0)
        return list(os.waitpid(pid, 0)[1:])

    with group(limits) as (root, cgroup):
        neighbour = root.create("neighbour", limits)
        status = sandboxed(cgroup, limits, hog)
        events, other = cgroup.events(), neighbour.events()
        return {
            "ended by": os.waitstatus_to_exitcode(status[0]),
            "oom_kills": events.oom_kills,
            "limit": events.memory_limit_bytes,
            "peak": events.memory_peak_bytes,
            "neighbour": [other.oom_kills, other.memory_peak_bytes],
        }


def shared_memory_is_counted() -> Any:
    """What is written to a tmpfs counts as the session's memory."""
    limits = Limits(memory_bytes=48 * MB, processes=10)

    def fill() -> int:
        pid = os.fork()
        if pid == 0:
            descriptor = os.memfd_create("x")
            os.ftruncate(descriptor, 512 * MB)
            # Seen in its own size as well, else the kernel might as soon end another of the group.
            block = mmap.mmap(descriptor, 512 * MB)
            for place in range(0, len(block), 4096):
                block[place] = 1
            os._exit(0)
        return os.waitpid(pid, 0)[1]

    with group(limits) as (_, cgroup):
        status = sandboxed(cgroup, limits, fill)
        return [os.waitstatus_to_exitcode(status), cgroup.events().oom_kills > 0]


def cpu() -> Any:
    """Use a processor until the kernel says that it held us back; nothing else ends the loop."""
    limits = Limits(processes=10, cpus=0.2, cpu_weight=50)

    def held_back(path: str) -> int:
        with open(f"{path}/cpu.stat") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("nr_throttled"))

    with group(limits) as (_, cgroup):
        path = next(p for p in cgroup.paths if os.path.exists(f"{p}/cpu.weight")
                    or os.path.exists(f"{p}/cpu.shares"))  # fmt: skip

        def spin() -> int:
            while not (count := held_back(path)):
                sum(range(10_000))
            return count

        return [sandboxed(cgroup, limits, spin) > 0, (cgroup.usage().cpu_s or 0.0) > 0]


def bomb_removed(at_once: bool) -> Any:
    """A bomb that goes off again whenever somebody of it dies is ended by removing its group.

    Nothing ends its pid namespace before that: its init waits for the end of a pipe.
    """
    limits = Limits(memory_bytes=256 * MB, processes=40)
    with group(limits, at_once=at_once) as (_, cgroup):
        reading, writing = os.pipe()

        def attack() -> None:
            os.write(writing, b"!")
            while True:
                with contextlib.suppress(OSError):
                    os.fork()

        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(AssertionError):
                sandboxed(cgroup, limits, attack)
            os._exit(0)
        os.close(writing)
        os.read(reading, 1)
        cgroup.remove(timeout_s=20)
        over = os.read(reading, 1)
        os.waitpid(pid, 0)
        return [over.decode(), [path for path in cgroup.paths if os.path.exists(path)]]


def joined_from_a_user_namespace() -> Any:
    """A process that could not write to the group's files joins by descriptors."""
    with group(Limits(processes=5)) as (_, cgroup):
        descriptors = cgroup.join_descriptors()
        target = next(path for path in cgroup.paths if "pids" in path)

        def action() -> Any:
            become_user()
            namespaces.enter_user_namespace(namespaces.maps_for_one_id())
            refused = attempted(lambda: os.close(os.open(f"{target}/cgroup.procs", os.O_WRONLY)))
            join(descriptors)
            namespaces.unshare(namespaces.NEWCGROUP)
            with open("/proc/self/cgroup") as file:
                seen = {line.strip().split(":", 2)[2] for line in file if ":pids:" in line}
            return [refused, sorted(seen), cgroup.usage().processes]

        found = forked(action)
        for descriptor in descriptors:
            os.close(descriptor)
        return found


def killed(at_once: bool) -> Any:
    """A tree of processes that ignore all they can, one of them in a session of its own."""
    with group(Limits(processes=20), at_once=at_once) as (_, cgroup):
        reading, writing = os.pipe()
        first = os.fork()
        if first == 0:
            join(cgroup.join_descriptors())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            for _ in range(5):
                if os.fork() == 0:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                    break
            os.write(writing, b"!")
            os.close(writing)
            while True:
                signal.pause()
        os.close(writing)
        for _ in range(6):
            os.read(reading, 1)
        handle = os.pidfd_open(first)
        busy = attempted(lambda: os.rmdir(cgroup.paths[0]))
        cgroup.remove()
        # The pipe's end is reached when nobody is left who could write to it.
        over = os.read(reading, 1)
        os.close(handle)
        status = os.waitpid(first, 0)[1]
        cgroup.remove()
        there = [path for path in cgroup.paths if os.path.exists(path)]
        return [busy, over.decode(), os.waitstatus_to_exitcode(status), there]


def owner_killed() -> Any:
    """An owner is killed with a session in its group; the next owner takes both away."""
    reading, writing = os.pipe()
    owner = os.fork()
    if owner == 0:
        root = CgroupRoot.detect(prefix=PREFIX)
        cgroup = root.create("left", Limits(processes=5))
        if os.fork() == 0:
            # As a session would: without the owner's descriptors, one of which is the lock.
            for lock in root._locks:
                os.close(lock)
            join(cgroup.join_descriptors())
            os.write(writing, b"!")
            while True:
                signal.pause()
        signal.pause()
    os.close(writing)
    os.read(reading, 1)
    living = CgroupRoot.detect(prefix=PREFIX)
    swept_while_alive = living.sweep()
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    swept = living.sweep()
    over = os.read(reading, 1)
    hierarchies = len(living.paths)
    living.close()
    return [swept_while_alive, len(swept) == hierarchies, over.decode()]


def churn(count: int) -> int:
    """Make, fill and remove groups; how many of ours are left."""
    with group(Limits()) as (root, _):
        for number in range(count):
            cgroup = root.create(f"n{number}", Limits(64 * MB, 10, 1.0, 100))
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                os.read(reading, 1)
                os._exit(0)
            cgroup.add(pid)
            os.close(writing)
            os.close(reading)
            os.waitpid(pid, 0)
            cgroup.remove()
        return sum(name.startswith("s-n") for path in root.paths for name in os.listdir(path))
