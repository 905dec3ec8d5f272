"""What is counted of a kernel: what its processes used, which limits they hit, what ended it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from replsvc_kernels.kernel import Resources
from replsvc_kernels.messages import Exit, LimitHit
from replsvc_kernels.sandbox import cgroups

# How programs end that can't go on, besides by a code of their own: a thread that can't be started
# is most often an abort.
_GIVEN_UP = (signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGTRAP)
# With fewer left a file system is full for whoever needs one.
_FEW_BLOCKS = 16


class Accounts:
    """One kernel's, from its control group where it has one.

    `workspace` is the path of a file system of its own, if it has one by now.
    """

    def __init__(
        self,
        group: cgroups.Cgroup | None = None,
        resources: Resources | None = None,
        workspace: str | None = None,
    ) -> None:
        self._group, self._resources = group, resources or Resources()
        self.workspace = workspace
        self._told = 0, 0

    def cpu_s(self) -> float | None:
        """Seconds of processor time that all its processes used; None where nobody counts."""
        return self._group.cpu_s() if self._group is not None else None

    def hits(self) -> tuple[LimitHit, ...]:
        """The limits that were hit since this was asked last."""
        if self._group is None or self._group.refusals() == self._told:
            return ()
        events = self._group.events()
        found = []
        told_kills, told_refused = self._told
        if (count := events.oom_kills - told_kills) > 0:
            found.append(
                LimitHit("oom", count, events.memory_limit_bytes, events.memory_peak_bytes)
            )
        if (count := events.processes_refused - told_refused) > 0:
            found.append(LimitHit("pids", count, events.processes_limit, events.processes_peak))
        self._told = events.oom_kills, events.processes_refused
        return tuple(found)

    def explain(self, exit_: Exit) -> Exit:
        """How the kernel ended, with the limit that ended it.

        A limit that was hit before and told of was a child's, and is no reason.
        """
        if exit_.signal == signal.SIGXCPU and (limit := self._resources.cpu_s) is not None:
            return Exit(signal=exit_.signal, cause="cpu", limit=limit, peak=limit)
        if exit_.signal == signal.SIGBUS and (full := self._full()) is not None:
            return Exit(signal=exit_.signal, cause="disk", limit=full, peak=full)
        hits = {hit.kind: hit for hit in self.hits()}
        # Out of memory is SIGKILL, or an end that nobody told.
        killed = exit_.code is None and exit_.signal in (None, signal.SIGKILL)
        if killed and (hit := hits.get("oom")) is not None:
            return Exit(signal=signal.SIGKILL, cause="oom", limit=hit.limit, peak=hit.peak)
        gave_up = exit_.signal in _GIVEN_UP or bool(exit_.code)
        if gave_up and (hit := hits.get("pids")) is not None:
            return Exit(exit_.code, exit_.signal, "pids", hit.limit, hit.peak)
        return exit_

    def _full(self) -> int | None:
        """The size of the workspace, if it is full."""
        if self.workspace is not None:
            with suppress(OSError):
                size = os.statvfs(self.workspace)
                if size.f_bavail < _FEW_BLOCKS:
                    return size.f_blocks * size.f_frsize
        return None
