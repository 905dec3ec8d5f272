"""ipykernel's own application, for an environment whose ipykernel our guest was not tested with.

No isolation and no guest: no setup code, no variables for one cell, output as ipykernel sends it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import trio

from replsvc_kernels.backends.base import Backend, Connection
from replsvc_kernels.backends.foreign import LastPrinted, foreign_kernel, too_late
from replsvc_kernels.backends.reaped import ReaperProcess
from replsvc_kernels.backends.surroundings import (
    PORTS,
    check_python,
    kernel_environment,
    private_directory,
)
from replsvc_kernels.background import background_nursery
from replsvc_kernels.kernel import Kernel, KernelInfo, LaunchError, LaunchSpec


class StockBackend(Backend):
    """See the module. `runtime_dir` holds the private directories; None is the system's."""

    name = "stock"

    def __init__(self, runtime_dir: str | None = None) -> None:
        self._runtime_dir = runtime_dir

    @asynccontextmanager
    async def open(self, spec: LaunchSpec) -> AsyncIterator[Kernel]:
        """See `Backend.open`."""
        deadline = trio.current_time() + spec.startup_timeout_s
        python = check_python(spec.python)
        with ExitStack() as stack:
            directory = stack.enter_context(private_directory(self._runtime_dir))
            connection = Connection("ipc", f"{directory}/k", PORTS, secrets.token_hex(32).encode())
            file = connection_file(directory, connection)
            printed = stack.enter_context(closing(LastPrinted()))
            environment = {
                # else it is made in HOME, the session's workspace
                "IPYTHONDIR": f"{directory}/ipython",
                **kernel_environment(spec, python, directory),
            }
            process = ReaperProcess()
            async with background_nursery() as nursery:
                with trio.move_on_at(deadline) as startup:
                    await nursery.start(
                        process.run,
                        [python, "-m", "ipykernel_launcher", "-f", file],
                        environment,
                        spec.workspace,
                        [],
                        (printed.write_end, printed.write_end),
                    )
                if startup.cancelled_caught:
                    raise too_late(spec)
                printed.close_write_end()
                nursery.start_soon(printed.run)
                info = KernelInfo("python", "", has_guest=False)
                async with foreign_kernel(
                    info, process, connection, printed, nursery, spec, deadline
                ) as kernel:
                    yield kernel


def connection_file(directory: str, connection: Connection) -> str:
    """Write what ipykernel reads: where to listen, and the key. Nobody else may read it.

    Raises `LaunchError`.
    """
    path = Path(directory, "connection.json")
    content = {
        "transport": connection.transport,
        "ip": connection.ip,
        "key": connection.key.decode(),
        "signature_scheme": connection.signature_scheme,
        **{f"{name}_port": port for name, port in connection.ports.items()},
    }
    try:
        path.touch(mode=0o600)
        path.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"the kernel's connection file can't be written: {error}") from error
    return str(path)
