"""The fork server where it goes wrong: it is killed, can't start, is asked for too much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_rigs import fork_servers, isolated, opened, parent_of, seen_from_here

from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.forkserver import ForkServerBackend
from replsvc_kernels.kernel import (
    HostMount,
    Kernel,
    KernelDied,
    LaunchError,
    LaunchTimeout,
    Resources,
)
from replsvc_kernels.messages import Exit, Stream

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
async def servers() -> AsyncIterator[ForkServers]:
    async with fork_servers() as servers:
        yield servers


@pytest.fixture
def backend(servers: ForkServers) -> ForkServerBackend:
    return servers.backend(sys.executable)


async def said(kernel: Kernel, code: str) -> str:
    async with kernel.execute(code, cell="c") as cell:
        outputs = [output async for output in cell]
    assert cell.reply is not None
    assert cell.reply.status == "ok", cell.reply
    return b"".join(one.data for one in outputs if isinstance(one, Stream)).decode()


def pid_of(kernel: Kernel) -> int:
    assert kernel.info.pid is not None
    return kernel.info.pid


def kill_server(backend: ForkServerBackend) -> int:
    """Kill it; returns the pid of its keeper, which is its brother."""
    server = backend._server.pid
    assert server is not None
    parent = parent_of(server)
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (keeper,) = {int(child) for child in children} - {server}
    os.kill(server, signal.SIGKILL)
    return keeper


# Servers that are killed


async def test_a_kernel_outlives_its_server_and_the_next_one_gets_another(
    servers: ForkServers, backend: ForkServerBackend, watched: Any
) -> None:
    async with opened(backend, isolated(servers, "one")) as first:
        assert await said(first, "x = 5") == ""
        before = backend._server.pid
        keeper = kill_server(backend)
        watched.add(keeper)
        async with opened(backend, isolated(servers, "two")) as second:
            assert backend._server.pid != before
            assert await said(first, "print(x)") == "5\n"
            assert await said(second, "print('x' in globals())") == "False\n"
            async with first.execute("import time\nprint()\ntime.sleep(1000)", cell="i") as cell:
                await anext(aiter(cell))
                assert await first.interrupt()
                async for _ in cell:
                    pass
            assert cell.reply is not None
            assert cell.reply.failure is not None
            assert cell.reply.failure.ename == "KeyboardInterrupt"
        assert watched.alive() == [keeper]
        watched.add(pid_of(first))
    # It lived for that kernel alone.
    await trio.to_thread.run_sync(watched.wait_gone)


async def test_a_kernel_without_server_can_be_killed_and_nothing_is_left(
    servers: ForkServers, backend: ForkServerBackend, watched: Any
) -> None:
    async with opened(backend, isolated(servers, "one")) as kernel:
        watched.add(pid_of(kernel))
        watched.add(seen_from_here(pid_of(kernel), 1))
        watched.add(kill_server(backend))
        await kernel.kill()
        assert await kernel.wait_exited() is not None
        with pytest.raises(KernelDied):
            await said(kernel, "1")
    await trio.to_thread.run_sync(watched.wait_gone)


async def test_a_server_that_is_killed_with_nobody_there_takes_its_keeper_along(
    servers: ForkServers, backend: ForkServerBackend, watched: Any
) -> None:
    async with opened(backend, isolated(servers, "one")):
        pass
    watched.add(kill_server(backend))
    await trio.to_thread.run_sync(watched.wait_gone)


async def test_closing_the_servers_leaves_no_process(watched: Any) -> None:
    async with fork_servers() as servers:
        backend = servers.backend(sys.executable)
        async with opened(backend, isolated(servers, "one")):
            pass
        assert backend._server.pid is not None
        parent = parent_of(backend._server.pid)
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            watched.add(int(pid))
        watched.add(parent)
    assert watched.alive() == []


async def test_a_kernel_whose_init_is_killed_has_died_of_that(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    async with opened(backend, isolated(servers, "one")) as kernel:
        async with kernel.execute("print('begun', flush=True)\nwhile True: pass", cell="c") as cell:
            outputs = aiter(cell)
            assert await anext(outputs) == Stream("stdout", b"begun\n", "c")
            os.kill(seen_from_here(pid_of(kernel), 1), signal.SIGKILL)
            with pytest.raises(KernelDied) as death:
                await anext(outputs)
        assert death.value.exit == Exit(signal=signal.SIGKILL)


TRACES = """
import linecache, sys
print([name for name in vars(sys) if name.startswith("last_")])
print([name for name in linecache.cache if linecache.getlines(name) == ["1 / 0\\n"]])
print("x" in globals(), repr(_), len(Out), len(In))
get_ipython().run_line_magic("tb", "")
"""


async def test_a_kernel_knows_nothing_of_the_cells_that_warmed_its_server(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    async with opened(backend, isolated(servers, "one")) as kernel:
        lines = (await said(kernel, TRACES)).splitlines()
    assert lines == ["[]", "[]", "False '' 0 2", "No traceback available to show."]


# Starts that fail


async def refused(backend: ForkServerBackend, servers: ForkServers) -> str:
    with pytest.raises(LaunchError) as failed:
        async with opened(backend, isolated(servers, "none")):
            pass
    assert not (servers.sessions / "none" / "run").exists()
    return str(failed.value)


async def test_a_module_that_can_not_be_preloaded_is_named(servers: ForkServers) -> None:
    backend = servers.backend(sys.executable, ("no_such_module",))
    said = await refused(backend, servers)
    assert "preload: no_such_module can't be imported" in said
    assert "No module named 'no_such_module'" in said
    with pytest.raises(LaunchError, match="no_such_module"):
        await backend.missing()  # tried again, and found again


async def test_a_library_that_wants_to_write_when_it_is_imported_can_be_preloaded(
    servers: ForkServers,
) -> None:
    backend = servers.backend(sys.executable, ("matplotlib",))
    code = (
        "import sys\nprint('matplotlib' in sys.modules)\n"
        "import os, matplotlib, tempfile\n"
        "print(os.access(matplotlib.get_cachedir(), os.W_OK), os.listdir('/tmp'))\n"
        "print(os.environ['HOME'], 'MPLCONFIGDIR' in os.environ, tempfile.gettempdir())"
    )
    async with opened(backend, isolated(servers, "one")) as kernel:
        lines = (await said(kernel, code)).splitlines()
    assert lines == ["True", "True []", "/session/work False /session/work"]


async def test_an_environment_without_ipykernel_says_how_to_install_it(
    servers: ForkServers, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    said = await refused(servers.backend(python), servers)
    assert f"{python} -m pip install 'ipykernel" in said


async def test_an_interpreter_that_is_not_there_is_named(servers: ForkServers) -> None:
    assert "/no/such/python" in await refused(servers.backend("/no/such/python"), servers)


async def test_a_program_that_is_no_python_is_refused(servers: ForkServers) -> None:
    assert "/bin/true" in await refused(servers.backend("/bin/true"), servers)


async def test_a_server_that_is_too_slow_is_ended(tmp_path: Path) -> None:
    for name in ("runtime", "sessions"):
        (tmp_path / name).mkdir()
    async with ForkServers(tmp_path / "runtime", tmp_path / "sessions", 0.15).running() as servers:
        with pytest.raises(LaunchTimeout):
            await servers.backend(sys.executable, ("numpy.testing", "pandas")).missing()


async def test_a_kernel_that_is_not_forked_in_time_is_a_timeout(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    spec = isolated(servers, "one", startup_timeout_s=0.001)
    with pytest.raises(LaunchTimeout):
        async with opened(backend, spec):
            pass
    assert not Path(spec.workspace, "../run").exists()
    async with opened(backend, isolated(servers, "two")) as kernel:
        assert await said(kernel, "print(1)") == "1\n"


@pytest.mark.needs("root")
async def test_without_control_groups_each_users_processes_are_limited(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    servers._looked_for_cgroups = True  # and found none
    limited = Resources(processes=64)
    count = (
        "import threading\nstop, threads = threading.Event(), []\n"
        "try:\n    for _ in range(500):\n"
        "        threads.append(threading.Thread(target=stop.wait)); threads[-1].start()\n"
        "except RuntimeError: print(len(threads))\n"
        "stop.set()\nfor one in threads[:-1]: one.join()"
    )
    async with (
        opened(backend, isolated(servers, "one", resources=limited)) as one,
        opened(backend, isolated(servers, "two", resources=limited)) as two,
    ):
        assert one.info.isolation == "partial"
        for kernel in (one, two):
            assert 32 < int(await said(kernel, count)) <= 64


# Much at a time


async def test_more_mounts_than_a_dozen_are_all_there(
    servers: ForkServers, backend: ForkServerBackend, tmp_path: Path
) -> None:
    for number in range(40):
        (tmp_path / f"{number}").write_text(str(number))
    mounts = tuple(HostMount(str(tmp_path / f"{n}"), f"data/{n}") for n in range(40))
    async with opened(backend, isolated(servers, "one", mounts=mounts)) as kernel:
        code = "import os\nprint(sum(int(open(f'data/{n}').read()) for n in os.listdir('data')))"
        assert await said(kernel, code) == f"{sum(range(40))}\n"
        code = "try: open('data/1', 'w')\nexcept OSError as error: print(error.strerror)"
        assert await said(kernel, code) == "Read-only file system\n"


@pytest.mark.needs("root")
async def test_more_mounts_than_can_be_passed_are_refused(
    servers: ForkServers, backend: ForkServerBackend, tmp_path: Path
) -> None:
    mounts = tuple(HostMount(str(tmp_path), f"data/{n}") for n in range(300))
    with pytest.raises(LaunchError, match="descriptors"):
        async with opened(backend, isolated(servers, "one", mounts=mounts)):
            pass


@pytest.mark.needs("cgroups")
async def test_those_who_come_first_together_all_get_limits(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    seen: list[str] = []

    async def one(name: str) -> None:
        spec = isolated(servers, name, resources=Resources(processes=77))
        async with opened(backend, spec) as kernel:
            assert servers.cgroups is not None
            for path in servers.cgroups.paths:
                seen.extend(p.read_text() for p in Path(path).glob(f"s-{name}-*/pids.max"))
            assert await said(kernel, "print(1)") == "1\n"

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(one, f"n{number}")
    assert seen == ["77\n"] * 4
