"""execution.md rules 1-4, 14, 16, 18, 21-23: what a call of `repl` is and gives."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

import untested
from replsvc.calls import CallRequest
from replsvc.config import Config, Environment
from replsvc.coordinator import Coordinator
from replsvc.errors import (
    BackendUnavailableError,
    ConflictError,
    InvalidInputError,
    QueueFullError,
)
from replsvc.extension.contract import Extension
from replsvc.session import Session


async def test_a_value_is_shown_after_an_arrow_and_kept_whole(session: Session) -> None:
    call = await session.run("1 + 1")
    assert (call.status, call.text, call.is_error) == ("ok", "=> 2", False)
    assert call.result == {"text/plain": "2"}
    assert call.error is None
    assert call.cause is None


async def test_output_comes_before_the_value(session: Session) -> None:
    call = await session.run("print('out')\n'value'")
    assert call.text == "out\n=> 'value'"
    assert call.output.text == "out\n"
    assert (call.output.total_bytes, call.output.total_lines) == (4, 1)


async def test_nothing_at_all_says_so(session: Session) -> None:
    assert (await session.run("x = 1")).text == "(no output)"
    assert (await session.run("None")).text == "(no output)"
    assert (await session.run("")).text == "(no output)"


async def test_names_persist_between_calls(session: Session) -> None:
    await session.run("x = 41")
    assert (await session.run("x + 1")).text == "=> 42"


async def test_the_users_error_is_a_result_with_its_own_frames_only(session: Session) -> None:
    await session.run("def f():\n    return 1 / 0")
    call = await session.run("print('before')\n\nf()")
    assert (call.status, call.is_error, call.state_lost) == ("error", True, False)
    assert call.error is not None
    assert (call.error.ename, call.error.evalue) == ("ZeroDivisionError", "division by zero")
    assert call.text.startswith("before\n")
    assert call.text.endswith("ZeroDivisionError: division by zero")
    assert "return 1 / 0" in call.text
    assert "IPython" not in call.text
    assert "replsvc" not in call.text
    assert "\x1b" not in call.text


async def test_chained_causes_are_kept(session: Session) -> None:
    call = await session.run(
        "try:\n    {}['k']\nexcept KeyError as e:\n    raise ValueError('bad') from e"
    )
    assert "KeyError: 'k'" in call.text
    assert "direct cause" in call.text
    assert call.text.endswith("ValueError: bad")


@pytest.mark.parametrize(
    ("code", "evalue"), [("exit()", ""), ("quit()", ""), ("import sys; sys.exit(3)", "3")]
)
async def test_exit_in_a_cell_is_a_result_and_the_kernel_lives(
    session: Session, code: str, evalue: str
) -> None:
    await session.run("x = 1")
    call = await session.run(code)
    assert call.status == "error"
    assert call.error is not None
    assert call.error.ename == "SystemExit"
    assert evalue in call.error.evalue
    assert (await session.run("x")).text == "=> 1"


@pytest.mark.parametrize(
    ("code", "kind", "number"),
    [
        ("import os; os._exit(3)", "exit", 3),
        ("import os; os.abort()", "signal", 6),
        ("import ctypes; ctypes.string_at(0)", "signal", 11),
        ("import os; os.kill(os.getpid(), 9)", "signal", 9),
    ],
)
async def test_a_dead_kernel_is_explained_and_the_next_call_works(
    session: Session, code: str, kind: str, number: int
) -> None:
    call = await session.run(f"x = 1\nprint('last words', flush=True)\n{code}")
    assert (call.status, call.state_lost) == ("killed", True)
    assert call.cause is not None
    assert call.cause.kind == kind
    assert (call.cause.exit_code if kind == "exit" else call.cause.signal) == number
    assert call.text.startswith("last words\n")
    assert (await session.run("'x' in globals(), 1 + 1")).text == "=> (False, 2)"
    assert session.state == "idle"


async def test_await_asyncio_run_and_trio_run_work_in_cells(session: Session) -> None:
    await session.run("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x")
    assert (await session.run("await f(1)")).text == "=> 1"
    assert (await session.run("asyncio.run(f(2))")).text == "=> 2"
    code = "import trio\nasync def g():\n    await trio.sleep(0)\n    return 3\ntrio.run(g)"
    assert (await session.run(code)).text == "=> 3"


@pytest.mark.parametrize(
    "code",
    [
        "x = 'é漢🎉'\r\nprint(x)\r\nlen(x)",
        "\ufeffprint('é漢🎉')\nlen('é漢🎉')",
        "\x0cprint('é漢🎉')\n\x0c\nlen('é漢🎉')",
        "if True:\n\tprint('é漢🎉')\nlen('é漢🎉')",
    ],
)
async def test_any_unicode_and_line_ends_run(session: Session, code: str) -> None:
    assert (await session.run(code)).text == "é漢🎉\n=> 3"


async def test_nul_bytes_are_pythons_own_error(session: Session) -> None:
    call = await session.run("x = 1\ny = '\0'")
    assert call.status == "error"
    assert call.error is not None
    assert call.error.ename in ("SyntaxError", "ValueError")
    assert "null byte" in call.error.evalue


async def test_a_syntax_error_names_its_line(session: Session) -> None:
    call = await session.run("x = 1\n\nif x\n    pass")
    assert call.status == "error"
    assert "line 3" in call.text
    assert "SyntaxError" in call.text


async def test_lone_surrogates_neither_fail_nor_get_lost(session: Session) -> None:
    call = await session.run(r"print('a\ud800b'); '\udfff'")
    assert call.status == "ok"
    assert "a\\ud800b" in call.output.text


async def test_the_count_is_the_kernels_and_of_user_cells_only(session: Session) -> None:
    counts = [(await session.run("1")).execution_count for _ in range(3)]
    assert counts == [1, 2, 3]
    await session.restart()
    assert (await session.run("1")).execution_count == 1


async def test_home_temporary_directory_and_cwd_are_the_workspace_also_after_a_restart(
    session: Session,
) -> None:
    code = (
        "import os, tempfile\n"
        "places = os.getcwd(), os.environ['HOME'], os.environ['TMPDIR'], tempfile.gettempdir()\n"
        "{os.path.realpath(place) for place in places}"  # a long path has a short name
    )
    isolated = session._parts.chosen.isolation != "none"
    workspace = "/session/work" if isolated else str(session._parts.workspace)
    assert (await session.run(code)).text == f"=> {{{workspace!r}}}"
    await session.run("open('kept', 'w').close()")
    await session.restart()
    assert (await session.run(code)).text == f"=> {{{workspace!r}}}"
    assert (await session.run("os.listdir('.')")).text == "=> ['kept']"


async def test_a_missing_module_says_what_can_be_imported_here(session: Session) -> None:
    call = await session.run("print('before')\nimport ipykernl")
    assert call.error is not None
    assert call.error.traceback[-1] == "ModuleNotFoundError: No module named 'ipykernl'"
    last = call.text.splitlines()[-1]
    assert last.startswith("[ipykernl is not installed here. Did you mean ipykernel? Importable in")
    assert call.details["hint"] in last
    assert "replsvc" not in last
    for code in ("import json.nope", "raise ModuleNotFoundError('mine')", "1 / 0"):
        call = await session.run(code)
        assert (call.status, dict(call.details)) == ("error", {}), code


@pytest.mark.parametrize(
    "code",
    [
        "!pip install --no-index nothing-of-the-kind",
        "%pip install --no-index nothing-of-the-kind",
        "import subprocess, sys\n"
        "n = subprocess.run([sys.executable, '-m', 'pip', 'install', '--no-index', 'nothing'])",
    ],
)
async def test_pip_that_fails_says_what_can_be_imported_here(session: Session, code: str) -> None:
    call = await session.run(code)
    assert "ERROR: No matching distribution" in call.output.text
    last = call.text.splitlines()[-1]
    assert last.startswith("[pip did not install it.")
    assert "Importable in this Python 3." in last
    assert call.details["hint"] in last
    assert (await session.run("!echo ERROR: of something else")).details == {}


async def test_env_is_set_for_one_call_and_restored_exactly(session: Session) -> None:
    await session.run("import os; os.environ['B'] = 'kept'")
    code = "os.environ['A'], os.environ['B']"
    call = await session.run(code, env={"A": "x'\n\"é", "B": "other"})
    assert call.result == {"text/plain": repr(("x'\n\"é", "other"))}
    assert (await session.run("os.environ.get('A'), os.environ['B']")).text == "=> (None, 'kept')"


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"A=": "x"}},
        {"env": {"": "x"}},
        {"env": {"A": "\0"}},
        {"env": {"A": "\udfff\ud800"}},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"id": "a b"},
        {"on_disconnect": "never"},
        {"nonsense": 1},
    ],
)
async def test_a_call_that_can_not_be_as_asked_is_refused_and_is_no_call(
    session: Session, fields: dict[str, object]
) -> None:
    with pytest.raises(InvalidInputError, match=f"call: {next(iter(fields))}"):
        await session.run("1", **fields)
    assert (await session.run("1")).execution_count == 1


async def test_only_declared_environment_reaches_the_kernel(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_COORDINATOR", "1")
    async with coordinator.session(env={"DECLARED": "yes"}) as session:
        call = await session.run(
            "import os; 'SECRET_OF_THE_COORDINATOR' in os.environ, os.environ['DECLARED'], "
            "os.environ['HOME'] == os.getcwd(), os.environ['TERM'], os.environ['NO_COLOR']"
        )
        assert call.text == "=> (False, 'yes', True, 'dumb', '1')"
        call = await session.run("import subprocess; subprocess.run('env', shell=True)")
        assert "SECRET_OF_THE_COORDINATOR" not in call.text


async def test_signals_that_the_service_was_started_without_are_none_that_code_has_to_miss(
    make_config: Callable[..., Config],
) -> None:
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        async with Coordinator(make_config()) as coordinator, coordinator.session() as session:
            code = "import subprocess; print(subprocess.getoutput('cat /proc/self/status'))"
            found = dict(
                line.split(":\t", 1) for line in (await session.run(code)).output.text.splitlines()
            )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (int(found["SigIgn"], 16), int(found["SigBlk"], 16)) == (0, 0)


async def test_our_own_modules_are_not_in_sight(session: Session) -> None:
    call = await session.run("import replsvc")
    assert call.error is not None
    assert call.error.ename == "ModuleNotFoundError"
    call = await session.run("import sys; [p for p in sys.path if 'kernels' in p], sys.path[0]")
    assert call.text == "=> ([], '')"


async def test_files_are_in_place_before_the_first_cell(coordinator: Coordinator) -> None:
    files = {"data/in.txt": {"text": "héllo"}, "raw.bin": {"base64": "AAEC"}}
    async with coordinator.session(files=files) as session:
        code = "open('data/in.txt', encoding='utf-8').read(), open('raw.bin', 'rb').read()"
        assert (await session.run(code)).text == r"=> ('héllo', b'\x00\x01\x02')"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
async def test_files_outside_the_workspace_are_refused(coordinator: Coordinator, path: str) -> None:
    with pytest.raises(InvalidInputError, match="files"):
        async with coordinator.session(files={path: {"text": ""}}):
            pass


async def test_code_above_the_limit_is_refused_before_it_runs(session: Session) -> None:
    limit = session.limits.max_code_bytes
    assert (await session.run("#" * limit)).status == "ok"
    call = await session.run("é" * (limit // 2 + 1))
    assert (call.status, call.execution_count) == ("error", None)
    assert call.cause is not None
    assert call.cause.kind == "invalid_input"
    assert str(limit) in call.text


@pytest.mark.parametrize(
    "input_",
    [{}, {"code": 1}, {"code": "1", "more": 2}, {"code": ["x"]}, {"code": "1", "title": 3}],
)
async def test_invalid_input_is_a_call_that_ran_nothing(
    session: Session, input_: dict[str, object]
) -> None:
    call = await session.call("repl", input_)
    assert (call.status, call.execution_count) == ("error", None)
    assert call.cause is not None
    assert call.cause.kind == "invalid_input"
    assert (await session.run("1")).execution_count == 1


async def test_an_unknown_tool_is_a_call_that_names_the_tools(session: Session) -> None:
    call = await session.call("shell", {})
    assert call.cause is not None
    assert call.cause.kind == "unknown_tool"
    assert "repl" in call.text


async def test_a_failed_cell_does_not_abort_the_next_callers(session: Session) -> None:
    runs = [
        await session.submit(CallRequest(input={"code": code}))
        for code in ("x = 1", "1 / 0", "x + 1")
    ]
    calls = [await run.wait() for run in runs]
    assert [call.status for call in calls] == ["ok", "error", "ok"]
    assert calls[2].text == "=> 2"


async def test_calls_run_in_the_order_of_their_coming(session: Session) -> None:
    await session.run("seen = []")
    runs = [
        await session.submit(CallRequest(input={"code": f"seen.append({n})"})) for n in range(20)
    ]
    for run in runs:
        await run.wait()
    assert (await session.run("seen == list(range(20))")).text == "=> True"


async def test_a_full_queue_says_which_cell_runs_and_since_when(coordinator: Coordinator) -> None:
    async with coordinator.session(limits={"queue_limit": 2}) as session:
        code = "import os; os.mkfifo('f'); print('ready', flush=True); open('f').read()"
        running = await session.submit(CallRequest(input={"code": code, "title": "Wait"}))
        async for events in session.log.follow(session.id, call_id=running.id):
            if any(event.kind == "output" for event in events):
                break
        queued = [await session.submit(CallRequest(input={"code": "1"})) for _ in range(2)]
        with pytest.raises(QueueFullError) as caught:
            await session.submit(CallRequest(input={"code": "2"}))
        assert caught.value.details["running"] == running.id
        assert caught.value.details["running_title"] == "Wait"
        assert caught.value.http_status == 429
        await session.interrupt()
        assert (await running.wait()).status == "interrupted"
        assert [(await run.wait()).text for run in queued] == ["=> 1", "=> 1"]


async def test_the_same_id_and_request_is_the_same_call(session: Session) -> None:
    await session.run("n = 0")
    request = CallRequest(id="once", input={"code": "n += 1; n"})
    runs = [await session.submit(request) for _ in range(5)]
    calls = [await run.wait() for run in runs]
    assert {call.text for call in calls} == {"=> 1"}
    for _ in range(70):  # out of what is kept at hand
        await session.run("0")
    again = await session.submit(request)
    assert await again.wait() == calls[0]
    assert (await session.run("n")).text == "=> 1"
    with pytest.raises(ConflictError):
        await session.submit(CallRequest(id="once", input={"code": "n += 2; n"}))


async def test_a_detached_call_is_fetched_later(session: Session) -> None:
    run = await session.submit(CallRequest(input={"code": "print('x')\n7"}, detach=True))
    final = await run.wait()
    assert final.text == "x\n=> 7"
    assert await session.find(run.id) == final


async def test_cost_and_times_are_on_every_result(session: Session) -> None:
    call = await session.run("print('x' * 400)")
    assert call.cost.bytes == len(call.text.encode())
    assert call.cost.tokens_estimate >= 100
    assert call.times.execution_s > 0
    assert call.times.queue_s >= 0
    assert call.usage.cpu_s is not None
    assert call.usage.max_memory_bytes is not None
    assert call.usage.max_memory_bytes > 1_000_000


async def test_a_long_output_keeps_both_ends_and_says_what_is_missing(session: Session) -> None:
    call = await session.run("for n in range(100_000): print('line', n)")
    assert call.output.truncated
    assert call.output.total_lines == 100_000
    assert call.output.text.startswith("line 0\n")
    assert call.output.text.endswith("line 99999\n")
    assert len(call.output.text.encode()) <= session.limits.max_output_bytes
    assert "100,000" in call.output.text or "100000" in call.output.text
    log = b"".join([chunk async for chunk in _log(session, call.id)])
    assert log == b"".join(b"line %d\n" % n for n in range(100_000))


async def _log(session: Session, call_id: str) -> AsyncIterator[bytes]:
    after = 0
    while events := await session.log.read(session.id, after, call_id=call_id, kinds=["output"]):
        for event in events:
            assert event.blob is not None
            yield event.blob
        after = events[-1].seq


async def test_the_log_is_bounded_and_counts_what_it_dropped(coordinator: Coordinator) -> None:
    async with coordinator.session(limits={"max_log_bytes": 100_000}) as session:
        call = await session.run("import sys; n = sys.stdout.write('x' * 300_000)")
        assert call.output.total_bytes == 300_000
        assert call.output.dropped_bytes == 200_000
        assert call.output.truncated
        assert sum([len(chunk) async for chunk in _log(session, call.id)]) == 100_000


async def test_background_output_belongs_to_the_cell_that_started_it(session: Session) -> None:
    first = await session.run(
        "import subprocess, os\nos.mkfifo('go')\n"
        "child = subprocess.Popen('read x < go; echo late', shell=True)"
    )
    assert first.status == "ok"
    await session.run("open('go', 'w').write('x\\n'); child.wait()")
    async for events in session.log.follow(session.id, call_id=first.id):
        late = [event for event in events if event.data.get("background")]
        if late:
            assert late[0].blob == b"late\n"
            return


async def test_an_untested_ipykernel_runs_code_but_no_setup_code(
    make_config: Callable[..., Config], isolation: str
) -> None:
    place = Path(tempfile.mkdtemp(prefix="untested-", dir="/var/tmp"))
    place.chmod(0o755)  # where every user can go
    try:
        python = Path(untested.environment(place / "venv"))
        config = make_config().model_copy(
            update={"environments": {"old": Environment(python=python)}}
        )
        await _runs_without_setup(config, isolated=isolation != "none")
    finally:
        shutil.rmtree(place)


async def _runs_without_setup(config: Config, *, isolated: bool) -> None:
    async with Coordinator(config) as coordinator:
        async with coordinator.session(environment="old") as session:
            assert (await session.run("6 * 7")).text == "=> 42"
            info = await session.info()
            assert (info.guest, info.isolation != "none") == (False, isolated)
            ended = await session.run("import os; os._exit(3)")
            assert ended.cause is not None
            assert (ended.status, ended.cause.kind) == ("killed", "exit")
            assert (await session.run("6 * 7")).text == "=> 42"
        with pytest.raises(BackendUnavailableError, match="setup code of helper can't run"):
            async with coordinator.session(
                environment="old", extensions=[Extension(name="helper", code="x = 1")]
            ):
                pass


async def test_an_environment_that_lacks_ipykernel_says_what_to_do(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("bare")
    await trio.run_process(
        [sys.executable, "-m", "venv", "--without-pip", str(path)], stdin=subprocess.DEVNULL
    )
    config = Config(isolation="none", environments={"bare": Environment(python=path)})
    async with Coordinator(config) as coordinator:
        with pytest.raises(BackendUnavailableError, match="pip install 'ipykernel>="):
            async with coordinator.session(environment="bare"):
                pass
        with pytest.raises(BackendUnavailableError, match="bare, default"):
            async with coordinator.session(environment="nope"):
                pass
