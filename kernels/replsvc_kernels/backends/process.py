"""The guest as a plain process here, under a reaper that sweeps its tree. No isolation.

Where it does not run, for the version of ipykernel, that one's own application does.
"""

from __future__ import annotations

import math
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import trio

from replsvc_kernels.backends.accounts import Accounts
from replsvc_kernels.backends.base import Backend
from replsvc_kernels.backends.guest_kernel import GuestEnds, guest_kernel
from replsvc_kernels.backends.reaped import ReaperProcess
from replsvc_kernels.backends.stock import StockBackend
from replsvc_kernels.backends.surroundings import (
    check_python,
    kernel_environment,
    private_directory,
)
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import GuestUntested, Kernel, LaunchSpec

GUEST = str(Path(__file__).parent.parent / "guest")


def limit_cpu(pid: int, seconds: float) -> None:
    """End that process, and each that it starts from now on, after so much processor time."""
    soft = math.ceil(seconds)
    with suppress(ProcessLookupError):
        # Who ignores the signal is killed a second later.
        resource.prlimit(pid, resource.RLIMIT_CPU, (soft, soft + 1))


class ProcessBackend(Backend):
    """See the module. `runtime_dir` holds the private socket directories; None is the system's."""

    name = "process"

    def __init__(self, runtime_dir: str | None = None) -> None:
        self._runtime_dir = runtime_dir

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        async with AsyncExitStack() as stack:
            try:
                kernel = await stack.enter_async_context(self._guest(spec))
            except GuestUntested:
                stock = StockBackend(self._runtime_dir)
                kernel = await stack.enter_async_context(stock.open(spec))
            yield kernel

    @asynccontextmanager
    async def _guest(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        deadline = trio.current_time() + spec.startup_timeout_s
        python = check_python(spec.python)
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory(self._runtime_dir))
            ends = GuestEnds(f"{directory}/k", f"{directory}/k", spec.limits)
            stack.callback(ends.pump.close)
            process = ReaperProcess()
            process.accounts = Accounts(resources=spec.resources)
            async with background_nursery() as nursery:
                with ends.theirs:
                    keep = ends.guest_end.fileno()
                    await nursery.start(
                        process.run,
                        [python, GUEST, str(keep)],
                        kernel_environment(spec, python, directory),
                        spec.workspace,
                        [keep],
                        ends.stdio,
                    )
                if spec.resources.cpu_s is not None and process.pid is not None:
                    limit_cpu(process.pid, spec.resources.cpu_s)
                async with guest_kernel(ends, process, nursery, spec, "none", deadline) as kernel:
                    yield kernel
