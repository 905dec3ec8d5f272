"""Kernels that wait for a session: what a session gets of one, and what becomes of the others."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_rigs import fork_servers, isolated, opened

from replsvc_kernels.backends.fork_servers import ForkServers
from replsvc_kernels.backends.forkserver import ForkServerBackend
from replsvc_kernels.backends.pool import NO_POOL, PoolSize, Spare
from replsvc_kernels.kernel import HostMount, Kernel, LaunchSpec, Resources
from replsvc_kernels.messages import Stream

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
async def servers() -> AsyncIterator[ForkServers]:
    async with fork_servers(PoolSize(least=2, most=3)) as servers:
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


def spares(backend: ForkServerBackend) -> list[Spare]:
    return [spare for some in backend._pool._spares.values() for spare in some]


async def until(backend: ForkServerBackend, what: Callable[[list[Spare]], bool]) -> list[Spare]:
    """The kernels that wait, once they are as they should be; looked at when they change."""
    with trio.fail_after(30):
        while not what(waiting := spares(backend)):
            await backend._pool._changed.wait()
            await trio.lowlevel.checkpoint()
    return waiting


async def filled(backend: ForkServerBackend, spec: LaunchSpec, count: int = 2) -> list[int]:
    """The pids of the kernels that wait for a spec like this one."""
    backend.expect(spec)
    waiting = await until(backend, lambda some: len(some) == count)
    return [one.made.process.pid or 0 for one in waiting]


async def test_a_session_gets_a_kernel_that_was_there_and_everything_of_its_own(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    spec = isolated(servers, "one", env={"MINE": "ü=\n", "HOME": "/session/work/home"})
    waiting = await filled(backend, spec)
    Path(spec.workspace, "given").write_text("for you")
    async with opened(backend, spec) as kernel:
        assert kernel.info.pid in waiting
        code = (
            "import os, tempfile\nprint(os.getcwd(), os.listdir(), open('given').read())\n"
            "print([os.environ.get(n) for n in ('MINE', 'HOME', 'TMPDIR', 'MPLBACKEND')])\n"
            "print(tempfile.gettempdir()); open('made', 'w').close()"
        )
        assert (await said(kernel, code)).splitlines() == [
            "/session/work ['given'] for you",
            "['ü=\\n', '/session/work/home', '/session/work', "
            "'module://matplotlib_inline.backend_inline']",
            "/session/work",
        ]
        assert Path(spec.workspace, "made").exists()
        # The directory of its sockets went when we were connected, the rest with the placeholder.
        assert [one.name for one in Path(spec.workspace).parent.iterdir()] == ["work"]


async def test_it_has_exactly_the_variables_that_a_forked_one_has(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    show = "import os\nprint(sorted(os.environ.items()))"
    first = isolated(servers, "one", env={"MINE": "1"})
    async with opened(backend, first) as forked:
        variables = await said(forked, show)
    waiting = await filled(backend, isolated(servers, "two"))
    async with opened(backend, isolated(servers, "three", env={"MINE": "1"})) as kernel:
        assert kernel.info.pid in waiting
        assert await said(kernel, show) == variables


async def test_a_module_in_the_workspace_can_be_imported(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    spec = isolated(servers, "one")
    await filled(backend, spec)
    Path(spec.workspace, "given_module.py").write_text("x = 5")
    async with opened(backend, spec) as kernel:
        assert await said(kernel, "import given_module\nprint(given_module.x)") == "5\n"


async def test_no_kernel_is_used_twice_and_no_two_have_the_same_random_numbers(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    await filled(backend, isolated(servers, "none"))
    pids, numbers = set(), set()
    code = (
        "import random, tempfile, multiprocessing\n"
        "print(random.random(), tempfile.mktemp(), multiprocessing.current_process().authkey)"
    )
    for n in range(4):
        async with opened(backend, isolated(servers, f"n{n}")) as kernel:
            pids.add(kernel.info.pid)
            numbers.update((await said(kernel, code)).split(" ", 2))
        await until(backend, lambda some: len(some) >= 2)
    assert len(pids) == 4
    assert len(numbers) == 12


@pytest.mark.needs("cgroups")
async def test_limits_are_those_that_were_asked_for(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    limited = Resources(processes=50, open_files=99, file_bytes=12_345)
    waiting = await filled(backend, isolated(servers, "none", resources=limited))
    show = (
        "import resource\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), "
        "resource.getrlimit(resource.RLIMIT_FSIZE))"
    )
    async with (
        opened(backend, isolated(servers, "one", resources=limited)) as one,
        opened(backend, isolated(servers, "two", resources=Resources(open_files=77))) as two,
    ):
        assert one.info.pid in waiting
        assert two.info.pid not in waiting
        assert await said(one, show) == "(99, 99) (12345, 12345)\n"
        assert (await said(two, show)).startswith("(77, 77) ")
        assert servers.cgroups is not None
        groups = Path(f"/proc/{one.info.pid}/cgroup").read_text().splitlines()
        (own,) = (line.split(":")[2] for line in groups if "pids" in line.split(":")[1])
        bounds = Path("/sys/fs/cgroup/pids" + own, "pids.max")
        assert bounds.read_text() == "50\n"


async def test_what_is_mounted_makes_a_kernel_of_its_own(
    servers: ForkServers, backend: ForkServerBackend, tmp_path: Path
) -> None:
    waiting = await filled(backend, isolated(servers, "none"))
    (tmp_path / "data").write_text("5")
    mounts = (HostMount(str(tmp_path / "data"), "data"),)
    async with opened(backend, isolated(servers, "one", mounts=mounts)) as kernel:
        assert kernel.info.pid not in waiting
        assert await said(kernel, "print(open('data').read())") == "5\n"


async def test_variables_that_are_too_many_for_a_packet_are_set_at_the_fork(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    spec = isolated(servers, "one", env={"LONG": "x" * 60_000})
    waiting = await filled(backend, spec)
    async with opened(backend, spec) as kernel:
        assert kernel.info.pid not in waiting
        assert await said(kernel, "import os\nprint(len(os.environ['LONG']))") == "60000\n"


async def test_one_that_is_killed_in_the_pool_is_replaced(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    victim, other = await filled(backend, isolated(servers, "none"))
    os.kill(victim, signal.SIGKILL)
    waiting = await until(
        backend,
        lambda some: len(some) == 2 and victim not in [one.made.process.pid for one in some],
    )
    assert other in [one.made.process.pid for one in waiting]


async def test_those_of_a_server_that_died_are_replaced_by_the_next_ones(
    servers: ForkServers, backend: ForkServerBackend, watched: Any
) -> None:
    before = set(await filled(backend, isolated(servers, "none")))
    for pid in before:
        watched.add(pid)
    assert backend._server.pid is not None
    os.kill(backend._server.pid, signal.SIGKILL)
    await until(
        backend,
        lambda some: len(some) == 2 and before.isdisjoint(one.made.process.pid for one in some),
    )
    await trio.to_thread.run_sync(watched.wait_gone)
    async with opened(backend, isolated(servers, "one")) as kernel:
        assert await said(kernel, "print(1)") == "1\n"


async def test_a_session_outlives_its_server_like_any_other(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    waiting = await filled(backend, isolated(servers, "none"))
    async with opened(backend, isolated(servers, "one")) as kernel:
        assert kernel.info.pid in waiting
        assert backend._server.pid is not None
        gone = backend._server.gone
        os.kill(backend._server.pid, signal.SIGKILL)
        await gone.wait()
        assert await said(kernel, "print(1)") == "1\n"


async def test_demand_has_more_of_them_made(
    servers: ForkServers, backend: ForkServerBackend
) -> None:
    await filled(backend, isolated(servers, "none"))
    for n in range(4):
        async with opened(backend, isolated(servers, f"n{n}")):
            pass
    await until(backend, lambda some: len(some) == 3)


async def test_closing_leaves_no_process_and_no_directory(watched: Any) -> None:
    async with fork_servers(PoolSize(least=2, most=2)) as servers:
        backend = servers.backend(sys.executable)
        for pid in await filled(backend, isolated(servers, "none")):
            watched.add(pid)
    # `fork_servers` has looked for directories.
    assert watched.alive() == []


async def test_what_a_killed_coordinator_left_is_removed(tmp_path: Path) -> None:
    async with fork_servers() as servers:
        left = servers.sessions / ".spare-1" / "run"
        left.mkdir(parents=True)
        async with ForkServers(tmp_path, servers.sessions).running():
            assert not left.parent.exists()


async def test_a_pool_that_is_off_makes_nothing() -> None:
    async with fork_servers(NO_POOL) as servers:
        backend = servers.backend(sys.executable)
        backend.expect(isolated(servers, "none"))
        for n in range(3):
            async with opened(backend, isolated(servers, f"n{n}")):
                pass
        assert servers.kernels == 0
        assert spares(backend) == []
