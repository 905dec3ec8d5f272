"""Opening, finding and closing sessions: idempotence, refusals, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from replsvc.config import Config, Environment
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidInputError,
    IsolationUnavailableError,
    QuotaExceededError,
    SessionNotFoundError,
    StartupFailedError,
    StartupTimeoutError,
)
from replsvc.extension.contract import Extension
from replsvc.session import Session
from replsvc.session_values import Mount, SessionRequest

MakeConfig = Callable[..., Config]
# Looks at the kernel's processes or files with the host's eyes, or starts what can't be isolated.
plain = pytest.mark.parametrize("isolation", ["none"])


async def test_twenty_openings_of_one_id_give_one_session_and_one_kernel(
    coordinator: Coordinator,
) -> None:
    sessions: list[Session] = []

    async def open_one() -> None:
        sessions.append(await coordinator.open(SessionRequest(id="same")))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(open_one)
    assert len(sessions) == 20
    assert len(set(map(id, sessions))) == 1
    assert (await sessions[0].info()).generation == 1
    assert len(coordinator.list()) == 1


async def test_an_id_with_other_settings_is_a_conflict(coordinator: Coordinator) -> None:
    first = await coordinator.open(SessionRequest(id="a"))
    assert await coordinator.open(SessionRequest(id="a")) is first
    with pytest.raises(ConflictError, match="other settings"):
        await coordinator.open(SessionRequest(id="a", name="else"))
    await coordinator.close("a")
    with pytest.raises(ConflictError, match="was closed"):
        await coordinator.open(SessionRequest(id="a"))
    with pytest.raises(SessionNotFoundError):
        coordinator.get("a")


async def test_waiting_openers_get_the_failure_of_the_first(coordinator: Coordinator) -> None:
    failures: list[Exception] = []
    broken = [Extension(code="1/0", name="broken")]

    async def open_one() -> None:
        try:
            await coordinator.open(SessionRequest(id="x"), extensions=broken)
        except Exception as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(open_one)
    assert len({str(failure) for failure in failures}) == 1
    assert len(failures) == 5
    session = await coordinator.open(SessionRequest(id="x"))
    assert (await session.run("1")).text == "=> 1"


async def test_less_isolation_than_the_operators_is_refused() -> None:
    async with Coordinator(Config(isolation="best")) as coordinator:
        with pytest.raises(InvalidInputError, match="less than the operator's"):
            await coordinator.open(SessionRequest(isolation="none"))
        assert coordinator.list() == ()


async def test_nothing_runs_unsandboxed_where_isolation_can_not_be_had(tmp_path: Path) -> None:
    # An environment that lies in a home directory's secrets can't be shown to sessions.
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 4\n")
    broken.chmod(0o755)
    for isolation in ("best", "required"):
        config = Config.model_validate(
            {"isolation": isolation, "environments": {"default": {"python": broken}}}
        )
        async with Coordinator(config) as coordinator:
            with pytest.raises(IsolationUnavailableError, match="--isolation none"):
                await coordinator.open(SessionRequest())
            assert coordinator.list() == ()


async def test_a_kernel_that_is_not_ours_does_not_run_where_isolation_is_asked_for() -> None:
    async with Coordinator(Config(isolation="best")) as coordinator:
        with pytest.raises(IsolationUnavailableError, match="can't be isolated"):
            await coordinator.open(SessionRequest(kernel="python3"))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"timeout": 3}, "timeout_s"),
        ({"timeout_s": "soon"}, "timeout_s"),
        ({"timeout_s": 121}, "at most 120"),
        ({"timeout_s": None}, "at most 120"),
        ({"queue_limit": -1}, "queue_limit"),
    ],
)
async def test_limits_that_can_not_be_are_refused(
    coordinator: Coordinator, limits: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        await coordinator.open(SessionRequest(limits=limits))


async def test_more_sessions_than_allowed_are_refused(make_config: MakeConfig) -> None:
    config = make_config().model_copy(update={"max_sessions": 1})
    async with Coordinator(config) as coordinator:
        session = await coordinator.open(SessionRequest())
        with pytest.raises(QuotaExceededError, match="1 sessions"):
            await coordinator.open(SessionRequest())
        await coordinator.close(session.id)
        await coordinator.open(SessionRequest())


async def test_an_unknown_kernelspec_names_what_is_installed(coordinator: Coordinator) -> None:
    with pytest.raises(BackendUnavailableError, match="no-such"):
        await coordinator.open(SessionRequest(kernel="no-such"))
    assert coordinator.list() == ()


def _environment(make_config: MakeConfig, path: Path, script: str, **limits: object) -> Config:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return make_config(**limits).model_copy(
        update={"environments": {"default": Environment(python=path)}}
    )


async def test_a_kernel_that_never_gets_ready_is_a_startup_timeout_and_leaves_nothing(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    config = _environment(
        make_config,
        tmp_path / "python",
        f"echo $$ > {pid_file}; exec sleep 1000",
        startup_timeout_s=0.5,
    )
    async with Coordinator(config) as coordinator:
        with pytest.raises(StartupTimeoutError, match=r"0\.5 s"):
            await coordinator.open(SessionRequest(id="late"))
        assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
        assert coordinator.list() == ()
        assert not list(coordinator._workspaces.glob("*"))
        with pytest.raises(StartupTimeoutError):  # the id is free again
            await coordinator.open(SessionRequest(id="late"))


@plain
async def test_an_interpreter_that_ends_at_once_is_explained_with_its_last_words(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = _environment(make_config, tmp_path / "python", "echo broken install >&2; exit 4")
    async with Coordinator(config) as coordinator:
        with pytest.raises(
            (BackendUnavailableError, StartupFailedError), match=r"exit code 4.*broken install"
        ):
            await coordinator.open(SessionRequest())


async def test_a_missing_interpreter_is_named(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config().model_copy(
        update={"environments": {"default": Environment(python=tmp_path / "nowhere")}}
    )
    async with Coordinator(config) as coordinator:
        with pytest.raises(BackendUnavailableError, match="nowhere"):
            await coordinator.open(SessionRequest())


@plain
async def test_a_mount_shows_the_hosts_files(coordinator: Coordinator, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n")
    mounts = [Mount.parse(f"{tmp_path}:data/here")]
    async with coordinator.session(mounts=mounts) as session:
        assert (await session.run("open('data/here/in.csv').read()")).text == r"=> 'a,b\n'"
    assert (tmp_path / "in.csv").exists()
    with pytest.raises(InvalidInputError, match="there is no"):
        async with coordinator.session(mounts=[Mount.parse("/no/such/place")]):
            pass


@plain
async def test_closing_leaves_no_process_file_or_socket(coordinator: Coordinator) -> None:
    session = await coordinator.open(SessionRequest())
    code = (
        "import os, subprocess\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "os.getpid(), child.pid"
    )
    text = (await session.run(code)).text.removeprefix("=> ").strip("()")
    pids = [int(pid) for pid in text.split(",")]
    directory = coordinator._workspaces / session.id
    assert directory.is_dir()
    await coordinator.close(session.id)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert not directory.exists()
    assert [path.name for path in coordinator._runtime.iterdir()] in (
        ["lock", "data"],
        ["data", "lock"],
    )


HOST = """
import sys, trio
from replsvc.config import Config
from replsvc.coordinator import Coordinator

CODE = '''import os, subprocess
child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
os.mkfifo('f'); open('f').read()'''

async def main():
    async with Coordinator(Config(isolation="none")) as coordinator:
        async with coordinator.session() as session:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: session.run(CODE, id="c"))
                async for events in session.log.follow(session.id, call_id="c"):
                    for event in events:
                        if event.blob:
                            sys.stdout.write(event.blob.decode())
                            print(coordinator._runtime, flush=True)
trio.run(main)
"""


async def test_a_killed_coordinator_leaves_no_process_and_the_next_one_its_directory() -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    try:
        pids = [int(pid) for pid in host.stdout.readline().split()]
        runtime = Path(host.stdout.readline().strip())
        handles = [os.pidfd_open(pid) for pid in pids]
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
    with trio.fail_after(10):
        for handle in handles:
            await trio.lowlevel.wait_readable(handle)  # readable when the process has ended
            os.close(handle)
    assert runtime.is_dir()
    async with Coordinator(Config(isolation="none")):
        assert not runtime.exists()


async def test_sessions_of_a_killed_coordinator_are_found_stopped(tmp_path: Path) -> None:
    config = Config(isolation="none", data=tmp_path / "data")
    code = (
        "import sys, os, signal, trio\nfrom pathlib import Path\n"
        "from replsvc.config import Config\nfrom replsvc.coordinator import Coordinator\n"
        "from replsvc.session_values import SessionRequest\n"
        "async def main():\n"
        "    async with Coordinator(Config(isolation='none', data=Path(sys.argv[1]))) as c:\n"
        "        s = await c.open(SessionRequest(id='left'))\n"
        "        await s.run('x = 1', id='done')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "trio.run(main)\n"
    )
    done = await trio.run_process(
        [sys.executable, "-c", code, str(config.data)], stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == -signal.SIGKILL
    async with Coordinator(config) as coordinator:
        assert (await coordinator.log.session("left")).state == "stopped"
        assert await coordinator.log.find("left", "done", "call_finished") is not None
        assert not (tmp_path / "data" / "workspaces" / "left").exists()


@plain
async def test_any_kernelspec_can_be_a_sessions_kernel(
    coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "kernels" / "bash" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Bash", "language": "bash"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    async with coordinator.session(kernel="bash") as session:
        call = await session.run("x=3; echo $((x + 4)); echo err >&2")
        assert call.status == "ok"
        assert "7" in call.output.text
        assert (await session.run("echo again $x")).output.text == "again 3\n"
    with pytest.raises(BackendUnavailableError, match="setup code of ext can't run"):
        async with coordinator.session(
            kernel="bash", extensions=[Extension(code="x = 1", name="ext")]
        ):
            pass


@plain
async def test_closing_lets_exit_handlers_run(coordinator: Coordinator, tmp_path: Path) -> None:
    async with coordinator.session() as session:
        await session.run(f"import atexit; atexit.register(open, {str(tmp_path / 'bye')!r}, 'w')")
    assert (tmp_path / "bye").exists()
