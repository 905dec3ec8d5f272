"""Installed kernelspecs: found or explained, launched by their provisioner, then gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from kernel_rigs import opened

from replsvc_kernels.backends.asyncio_thread import shared_asyncio_thread
from replsvc_kernels.backends.provisioner import ProvisionerBackend, list_kernelspecs
from replsvc_kernels.kernel import Kernel, KernelDied, LaunchError, LaunchSpec, LaunchTimeout
from replsvc_kernels.messages import Exit, Output, Stream

pytestmark = pytest.mark.usefixtures("jupyter_path")


async def run(kernel: Kernel, code: str) -> tuple[bytes, Any]:
    outputs: list[Output] = []
    async with kernel.execute(code, cell="c") as cell:
        async for output in cell:
            outputs.append(output)  # noqa: PERF401
    return b"".join(o.data for o in outputs if isinstance(o, Stream)), cell.reply


async def kernel_is_idle(kernel: Any) -> None:
    """Wait until the kernel has done what it was asked: it answers in order."""
    await kernel.request("shell", "kernel_info_request", {})


def asyncio_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "replsvc-asyncio"]


def test_installed_kernelspecs_are_listed_with_what_they_say() -> None:
    listed = list_kernelspecs()
    assert {"stock", "bash", "missing"} <= set(listed)
    assert "garbled" not in listed
    assert (listed["bash"].display_name, listed["bash"].language) == ("Bash", "bash")
    assert listed["bash"].provisioner == "local-provisioner"
    assert listed["unprovided"].provisioner == "no-such-provisioner"


async def test_an_unknown_kernelspec_names_the_installed_and_the_nearest(spec: LaunchSpec) -> None:
    with pytest.raises(LaunchError) as error:
        async with opened(ProvisionerBackend("stok"), spec):
            pass
    assert "there is no kernelspec 'stok'. Did you mean 'stock'?" in str(error.value)
    assert re.search(r"Installed: .*bash.*stock", str(error.value))


@pytest.mark.parametrize("name", ["../../etc", "a b", "", "\0", "é"])
async def test_a_name_that_can_be_none_is_just_unknown(spec: LaunchSpec, name: str) -> None:
    with pytest.raises(LaunchError, match="there is no kernelspec"):
        async with opened(ProvisionerBackend(name), spec):
            pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "/no/such/program can't be executed"),
        ("broken", r"exit code 1\): no such luck"),
        ("unprovided", "its provisioner 'no-such-provisioner' is not installed"),
        ("garbled", "its kernel.json can't be read"),
    ],
)
async def test_a_kernelspec_that_can_not_start_says_why_and_leaves_nothing(
    spec: LaunchSpec, runtime_dir: Path, name: str, reason: str
) -> None:
    with pytest.raises(LaunchError, match=reason):
        async with opened(ProvisionerBackend(name, str(runtime_dir)), spec):
            pass
    assert list(runtime_dir.iterdir()) == []
    assert asyncio_threads() == []


async def test_a_kernel_that_never_gets_ready_times_out_and_leaves_nothing(
    spec: LaunchSpec, runtime_dir: Path
) -> None:
    with pytest.raises(LaunchTimeout, match=r"not ready after 1\.5 s"):
        async with opened(
            ProvisionerBackend("deaf", str(runtime_dir)), replace(spec, startup_timeout_s=1.5)
        ):
            pass
    assert list(runtime_dir.iterdir()) == []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(runtime_dir).encode() not in cmdline.read_bytes()
        except OSError:
            continue


async def test_the_environment_is_what_is_declared_and_the_kernelspecs_own(
    spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COORDINATOR", "x")
    async with opened(ProvisionerBackend("stock"), replace(spec, env={"DECLARED": "y"})) as kernel:
        names = ("DECLARED", "FROM_KERNELSPEC", "SECRET_OF_THE_COORDINATOR", "HOME")
        printed, _ = await run(
            kernel, f"import os; print([os.environ.get(name) for name in {names}], os.getcwd())"
        )
    assert printed.decode() == f"{['y', 'yes', None, spec.workspace]} {spec.workspace}\n"


async def test_nothing_of_the_kernels_own_is_left_in_the_workspace(spec: LaunchSpec) -> None:
    async with opened(ProvisionerBackend("stock"), spec) as kernel:
        await run(kernel, "1")
    assert list(Path(spec.workspace).iterdir()) == []


async def test_a_local_kernels_channels_are_unix_sockets_in_a_private_directory(
    spec: LaunchSpec, runtime_dir: Path
) -> None:
    async with opened(ProvisionerBackend("stock", str(runtime_dir)), spec) as kernel:
        assert (kernel.info.language, kernel.info.isolation) == ("python", "none")
        assert not kernel.info.has_guest
        (directory,) = runtime_dir.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {f"k-{n}" for n in range(1, 6)} <= {path.name for path in directory.iterdir()}


async def test_a_kernelspec_can_ask_for_interrupts_by_message(spec: LaunchSpec) -> None:
    async with opened(ProvisionerBackend("by-message"), spec) as kernel:
        async with kernel.execute(
            "print('on my way', flush=True)\nwhile True: pass", cell="c"
        ) as cell:
            async for _ in cell:
                assert await kernel.interrupt()
        assert cell.reply is not None
        assert cell.reply.failure is not None
        assert cell.reply.failure.ename == "KeyboardInterrupt"


async def test_an_interrupt_message_that_nobody_answers_is_not_delivered(spec: LaunchSpec) -> None:
    async with opened(ProvisionerBackend("by-message"), spec) as kernel:
        assert kernel.info.pid is not None
        os.kill(kernel.info.pid, signal.SIGSTOP)
        tasks = [path / "stat" for path in Path(f"/proc/{kernel.info.pid}/task").iterdir()]
        while any(task.read_text().rpartition(")")[2].split()[0] != "T" for task in tasks):
            await trio.lowlevel.checkpoint()  # threads stop one by one
        assert not await kernel.interrupt()


async def test_a_kernel_of_another_language_runs_cells(spec: LaunchSpec) -> None:
    async with opened(ProvisionerBackend("bash"), spec) as kernel:
        assert kernel.info.language == "bash"
        printed, reply = await run(kernel, "x=41; echo $((x + 1))")
        assert (printed.strip(), reply.status) == (b"42", "ok")
        printed, reply = await run(kernel, "echo again $x; pwd")
        assert printed.decode().split() == ["again", "41", spec.workspace]
        _, reply = await run(kernel, "false")
        assert reply.status == "error"


async def test_a_kernel_of_another_language_is_swept_with_its_children(
    spec: LaunchSpec, watched: Any
) -> None:
    async with opened(ProvisionerBackend("bash"), spec) as kernel:
        await run(kernel, "setsid sh -c 'echo $$ > pid; exec sleep 1000' >/dev/null 2>&1 &")
        await run(kernel, "until [ -s pid ]; do :; done")
        watched.add(int((Path(spec.workspace) / "pid").read_text()))
    assert watched.alive() == []


async def test_a_cell_whose_messages_a_foreign_kernel_dropped_ends_all_the_same(
    spec: LaunchSpec,
) -> None:
    # Publishers drop what a slow reader does not take, in the end the idle that completes a cell.
    code = (
        "from IPython.display import display\n"
        "for i in range(5_000): display({'text/plain': str(i)}, raw=True)"
    )
    async with opened(ProvisionerBackend("stock"), spec) as kernel:
        async with kernel.execute(code, cell="c") as cell:
            await cell.wait_started()
            await kernel_is_idle(kernel)
            count = len([output async for output in cell])
        assert cell.reply is not None
        assert 0 < count < 5_000
        printed, _ = await run(kernel, "print('and goes on')")
        assert printed == b"and goes on\n"


# Provisioners of others


ELSEWHERE = """
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

class Elsewhere(LocalProvisioner):
    async def launch_kernel(self, cmd, **kwargs):
        if self.kernel_spec.metadata.get("fail"):
            raise RuntimeError("the cluster is full")
        return await super().launch_kernel(cmd, **kwargs)
"""


@pytest.fixture
def elsewhere(tmp_path: Path, kernelspecs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A provisioner that another package installed, and two kernelspecs that use it."""
    site, jupyter = tmp_path / "site", tmp_path / "jupyter"
    info = site / "elsewhere-1.dist-info"
    info.mkdir(parents=True)
    (site / "elsewhere_provisioner.py").write_text(ELSEWHERE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[jupyter_client.kernel_provisioners]\nelsewhere = elsewhere_provisioner:Elsewhere\n"
    )
    for name, fail in (("remote", False), ("full", True)):
        directory = jupyter / "kernels" / name
        directory.mkdir(parents=True)
        (directory / "kernel.json").write_text(
            json.dumps(
                {
                    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                    "display_name": name,
                    "language": "python",
                    "metadata": {
                        "kernel_provisioner": {"provisioner_name": "elsewhere"},
                        "fail": fail,
                    },
                }
            )
        )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("JUPYTER_PATH", str(jupyter))
    KernelProvisionerFactory.clear_instance()  # it looks for provisioners when it is made
    yield jupyter
    KernelProvisionerFactory.clear_instance()
    KernelProvisionerFactory.provisioners.pop("elsewhere", None)
    sys.modules.pop("elsewhere_provisioner", None)


async def test_another_provisioner_launches_where_it_likes_and_is_marked_external(
    spec: LaunchSpec, elsewhere: Path, runtime_dir: Path, watched: Any
) -> None:
    async with opened(ProvisionerBackend("remote", str(runtime_dir)), spec) as kernel:
        assert kernel.info.isolation == "external"
        assert kernel.info.pid is not None
        watched.add(kernel.info.pid)
        printed, reply = await run(kernel, "print('from afar')")
        assert (printed, reply.status) == (b"from afar\n", "ok")
        async with kernel.execute("print('go', flush=True)\nwhile True: pass", cell="c") as cell:
            async for _ in cell:
                assert await kernel.interrupt()
        assert cell.reply is not None
        assert cell.reply.status == "error"
    assert watched.alive() == []
    assert kernel.exit is not None
    assert asyncio_threads() == []


async def test_the_death_of_an_external_kernel_is_known(spec: LaunchSpec, elsewhere: Path) -> None:
    async with opened(ProvisionerBackend("remote"), spec) as kernel:
        with pytest.raises(KernelDied) as death:
            await run(kernel, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert death.value.exit == Exit(signal=signal.SIGKILL)
        assert not await kernel.interrupt()


async def test_a_provisioner_that_fails_is_a_launch_error(
    spec: LaunchSpec, elsewhere: Path, runtime_dir: Path
) -> None:
    with pytest.raises(LaunchError, match="'full' can't be launched: the cluster is full"):
        async with opened(ProvisionerBackend("full", str(runtime_dir)), spec):
            pass
    assert list(runtime_dir.iterdir()) == []
    assert asyncio_threads() == []


# The asyncio thread


async def test_there_is_one_asyncio_thread_while_it_is_used() -> None:
    async with shared_asyncio_thread() as first:
        async with shared_asyncio_thread() as second:
            assert first is second
            assert len(asyncio_threads()) == 1
        assert len(asyncio_threads()) == 1
    assert asyncio_threads() == []


async def test_results_and_errors_cross_the_threads() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    async def fail() -> None:
        raise ZeroDivisionError

    async def give_up() -> None:
        raise asyncio.CancelledError

    async with shared_asyncio_thread() as thread:
        assert await thread.call(answer) == 42
        with pytest.raises(ZeroDivisionError):
            await thread.call(fail)
        with pytest.raises(RuntimeError, match="cancelled by something else"):
            await thread.call(give_up)


async def test_cancellation_is_carried_over_and_waited_for() -> None:
    log: list[str] = []
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async def forever() -> None:
        token.run_sync_soon(begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    async with shared_asyncio_thread() as thread:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.call, forever)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert log == ["cleaned up"]
