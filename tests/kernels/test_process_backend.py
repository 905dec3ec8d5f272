"""The process backend where it goes wrong: launches that fail, hosts that are killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernel_rigs import Watched, opened, parent_of

from replsvc_kernels._zmtp import Peer
from replsvc_kernels.backends import reaped
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.kernel import (
    KernelDied,
    LaunchError,
    LaunchSpec,
    LaunchTimeout,
    ProtocolViolation,
)
from replsvc_kernels.messages import DisplayData, Limits, Output, Stream

HOST = """
import json, sys, trio
from replsvc_kernels._zmtp import Peer
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.kernel import LaunchSpec
CODE = '''
import os, subprocess
print(os.getpid(), subprocess.run("setsid sleep 1000 >/dev/null 2>&1 & echo $!", shell=True,
      capture_output=True, text=True).stdout, flush=True)
while True: pass
'''
async def main():
    async with ProcessBackend(sys.argv[1]).open(LaunchSpec(sys.argv[2])) as kernel:
        async with kernel.execute(CODE, cell="c") as cell:
            async for output in cell:
                sys.stdout.write(output.data.decode())
                sys.stdout.flush()
trio.run(main)
"""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fake_python(directory: Path, program: str) -> str:
    path = directory / "python"
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(0o755)
    return str(path)


def test_killing_the_host_leaves_no_process_of_its_kernels(
    tmp_path: Path, spec: LaunchSpec, watched: Any
) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir()
    path = os.pathsep.join(sys.path)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(runtime), spec.workspace],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert host.stdout is not None
    with host.stdout:
        kernel, orphan = map(int, host.stdout.readline().split())
        watched.add(kernel)
        watched.add(orphan)
        watched.add(parent_of(kernel))
        assert len(watched.alive()) == 3
        host.kill()
        assert host.wait(30) == -signal.SIGKILL
        watched.wait_gone()


async def test_a_python_that_is_not_there_is_a_launch_error(spec: LaunchSpec) -> None:
    with pytest.raises(LaunchError, match="no executable Python at /no/such/python"):
        async with opened(ProcessBackend(), replace(spec, python="/no/such/python")):
            pass


async def test_a_python_that_ends_at_once_is_a_launch_error_with_its_last_line(
    spec: LaunchSpec, tmp_path: Path, runtime_dir: Path
) -> None:
    python = fake_python(tmp_path, "raise SystemExit('\\x1b[31mno ipykernel here\\x1b[0m')")
    before = descriptors()
    with pytest.raises(LaunchError, match=r"exit code 1\): no ipykernel here"):
        async with opened(ProcessBackend(str(runtime_dir)), replace(spec, python=python)):
            pass
    assert descriptors() == before


async def test_a_python_that_is_killed_while_it_starts_is_a_death(
    spec: LaunchSpec, tmp_path: Path
) -> None:
    python = fake_python(tmp_path, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(KernelDied, match="SIGKILL"):
        async with opened(ProcessBackend(), replace(spec, python=python)):
            pass


async def test_a_guest_that_refuses_is_quoted(spec: LaunchSpec, tmp_path: Path) -> None:
    program = (
        "import socket, sys, json\n"
        "link = socket.socket(fileno=int(sys.argv[-1]))\n"
        "link.send(json.dumps({'ready': False, 'error': 'no, thank you'}).encode())"
    )
    python = fake_python(tmp_path, program)
    with pytest.raises(LaunchError, match=r"^no, thank you$"):
        async with opened(ProcessBackend(), replace(spec, python=python)):
            pass


async def test_a_kernel_that_never_gets_ready_times_out_and_leaves_nothing(
    spec: LaunchSpec, tmp_path: Path, runtime_dir: Path, watched: Any
) -> None:
    pid_file = tmp_path / "pid"
    program = (
        "import os, time, pathlib\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\ntime.sleep(1000)"
    )
    hanging = replace(spec, python=fake_python(tmp_path, program), startup_timeout_s=1.0)
    before = descriptors()
    with pytest.raises(LaunchTimeout, match="not ready after 1 s"):
        async with opened(ProcessBackend(str(runtime_dir)), hanging):
            pass
    assert descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


async def test_a_runtime_directory_that_is_too_deep_is_said(
    spec: LaunchSpec, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(LaunchError, match="too long for unix sockets"):
        async with opened(ProcessBackend(str(deep)), spec):
            pass
    assert list(deep.iterdir()) == []


async def test_a_runtime_directory_that_is_not_there_is_said(spec: LaunchSpec) -> None:
    with pytest.raises(LaunchError, match="no private directory"):
        async with opened(ProcessBackend("/no/such/directory"), spec):
            pass


async def test_a_failing_socket_leaves_nothing_open(
    spec: LaunchSpec, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(ProcessBackend(str(runtime_dir)), spec):
        pass  # what is opened once a process is open now
    before = descriptors()
    made: list[Peer] = []

    def fails_at_the_third(*args: Any) -> Peer:
        if len(made) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(Peer(*args))
        return made[-1]

    monkeypatch.setattr("replsvc_kernels._channels.Peer", fails_at_the_third)
    with pytest.raises(LaunchError, match="no sockets to the kernel"):
        async with opened(ProcessBackend(str(runtime_dir)), spec):
            pass
    assert descriptors() == before


async def test_the_body_s_own_exception_leaves_as_it_is(spec: LaunchSpec) -> None:
    with pytest.raises(ZeroDivisionError):
        async with opened(ProcessBackend(), spec):
            raise ZeroDivisionError


async def test_only_declared_variables_reach_the_kernel(
    spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COORDINATOR", "x")
    declared = replace(spec, env={"DECLARED": "y\nz"})
    async with opened(ProcessBackend(), declared) as kernel:
        code = "import os, json; print(json.dumps(dict(os.environ)))"
        async with kernel.execute(code, cell="c", env={"ONCE": "é=1"}) as cell:
            seen = json.loads(b"".join([o.data async for o in cell if isinstance(o, Stream)]))
        async with kernel.execute(code, cell="c") as cell:
            after = json.loads(b"".join([o.data async for o in cell if isinstance(o, Stream)]))
    assert "SECRET_OF_THE_COORDINATOR" not in seen
    assert (seen["DECLARED"], seen["HOME"], seen["ONCE"]) == ("y\nz", spec.workspace, "é=1")
    assert "ONCE" not in after


async def outputs_of(kernel: Any, code: str) -> list[Output]:
    async with kernel.execute(code, cell="c") as cell:
        return [output async for output in cell]


@pytest.mark.parametrize(
    "lie",
    [
        "display({'text/plain': 'x' * 200_000}, raw=True)",
        "display({'application/json': deep}, raw=True)",
    ],
)
async def test_a_kernel_that_breaks_a_bound_is_ended_for_it(spec: LaunchSpec, lie: str) -> None:
    bounded = replace(spec, limits=Limits(max_message_bytes=100_000, max_json_depth=20))
    code = (
        f"deep = []\nfor _ in range(50): deep = [deep]\nfrom IPython.display import display\n{lie}"
    )
    async with opened(ProcessBackend(), bounded) as kernel:
        with pytest.raises(ProtocolViolation):
            await outputs_of(kernel, code)
        await kernel.wait_exited()
        with pytest.raises(ProtocolViolation):
            await outputs_of(kernel, "1")


async def test_many_displays_arrive_whole_and_in_order(spec: LaunchSpec) -> None:
    code = (
        "from IPython.display import display\n"
        "for i in range(2_000): print(i); display({'text/plain': str(i)}, raw=True)"
    )
    async with opened(ProcessBackend(), spec) as kernel:
        told: list[str] = []
        for output in await outputs_of(kernel, code):
            if isinstance(output, DisplayData):
                told.append(f"<{output.data['text/plain']}>\n")
            elif isinstance(output, Stream):
                told.append(output.data.decode())
        assert "".join(told) == "".join(f"{i}\n<{i}>\n" for i in range(2_000))


async def test_a_consumer_that_comes_late_finds_everything_in_order(spec: LaunchSpec) -> None:
    code = (
        "from IPython.display import display\n"
        "for i in range(900): print(i); display({'text/plain': str(i)}, raw=True)"
    )
    async with opened(ProcessBackend(), spec) as kernel:
        async with kernel.execute(code, cell="c") as cell:
            # Answered after the cell, so all of it has been said by now.
            await kernel.request("shell", "kernel_info_request", {})  # type: ignore[attr-defined]
            told = [
                f"<{output.data['text/plain']}>\n"
                if isinstance(output, DisplayData)
                else output.data.decode()
                async for output in cell
            ]
        assert "".join(told) == "".join(f"{i}\n<{i}>\n" for i in range(900))


async def test_descriptors_are_not_accepted_from_a_kernel(spec: LaunchSpec, tmp_path: Path) -> None:
    program = (
        "import socket, sys, json, os\n"
        "link = socket.socket(fileno=int(sys.argv[-1]))\n"
        "socket.send_fds(link, [json.dumps({'error': 'take these'}).encode()], [0, 1, 2])"
    )
    before = descriptors()
    with pytest.raises(LaunchError, match="take these"):
        async with opened(ProcessBackend(), replace(spec, python=fake_python(tmp_path, program))):
            pass
    assert descriptors() == before


async def test_a_reaper_that_was_stopped_does_not_keep_a_kernel_from_closing(
    spec: LaunchSpec, runtime_dir: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaped, "SWEEP_S", 0.2)
    async with opened(ProcessBackend(str(runtime_dir)), spec) as kernel:
        pid = kernel.info.pid
        assert pid is not None
        watched.add(pid)
        os.kill(parent_of(pid), signal.SIGSTOP)
    assert watched.alive() == []
