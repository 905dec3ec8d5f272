from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from watched import no_process_left, stopped_reaper

FOREVER = "import threading; print('ready', flush=True); threading.Event().wait()"


def test_a_value_follows_the_output_plainly(replsvc):
    done = replsvc.run("print('hello'); 6 * 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n42\n", b"")


def test_a_value_stands_on_a_line_of_its_own(replsvc):
    done = replsvc.run("print('no line end', end=''); 1")
    assert done.stdout == b"no line end\n1\n"


def test_none_is_not_printed(replsvc):
    assert replsvc.run("None").stdout == b""


def test_streams_stay_apart_and_keep_every_byte(replsvc):
    code = "import os\n_ = os.write(1, bytes(range(256))), os.write(2, b'\\xff\\x00err')"
    done = replsvc.run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, bytes(range(256)), b"\xff\x00err")


def test_output_comes_before_the_cell_ends(replsvc, gate):
    code = f"print('early', flush=True)\n{gate.code}\nprint('late')"
    process = replsvc.start("run", "--isolation", "none", code)
    assert process.stdout.readline() == b"early\n"
    gate.wait().close()
    assert process.communicate(timeout=60) == (b"late\n", b"")
    assert process.returncode == 0


def test_a_display_is_shown_as_text(replsvc):
    done = replsvc.run("from IPython.display import display; display({'a': 1}); 'end'")
    assert done.stdout == b"{'a': 1}\n'end'\n"


def test_code_that_raises_exits_1_with_its_traceback_on_stderr(replsvc):
    done = replsvc.run("print('before'); 1/0")
    assert (done.returncode, done.stdout) == (1, b"before\n")
    assert b"ZeroDivisionError: division by zero" in done.stderr
    assert b"\x1b[" not in done.stderr


def test_leaving_by_sys_exit_is_code_that_raised(replsvc):
    done = replsvc.run("import sys; sys.exit(5)")
    assert done.returncode == 1
    assert b"SystemExit" in done.stderr


def test_a_timeout_exits_124_and_keeps_the_output(replsvc):
    done = replsvc.run("--timeout", "0.5", FOREVER)
    assert (done.returncode, done.stdout) == (124, b"ready\n")
    assert b"replsvc: timeout" in done.stderr


@pytest.mark.parametrize(
    ("end", "said"),
    [("os._exit(3)", b"3"), ("os.kill(os.getpid(), signal.SIGKILL)", b"SIGKILL")],
)
def test_a_killed_kernel_exits_137_and_says_how_it_ended(replsvc, end, said):
    done = replsvc.run(f"import os, signal; print('before', flush=True); {end}")
    assert (done.returncode, done.stdout) == (137, b"before\n")
    assert b"replsvc: killed" in done.stderr
    assert said in done.stderr


def test_nothing_is_left_when_it_ends(replsvc):
    code = "import subprocess; subprocess.Popen(['cat'], stdin=subprocess.PIPE); 1"
    assert replsvc.run(code).stdout == b"1\n"
    assert replsvc.left_behind() == []


def test_json_is_the_finished_call_and_nothing_else(replsvc):
    done = replsvc.run("--json", "print('x'); 1/0")
    assert (done.returncode, done.stderr) == (1, b"")
    call = json.loads(done.stdout)
    assert done.stdout.count(b"\n") == 1
    assert (call["tool"], call["status"], call["output"]["text"]) == ("repl", "error", "x\n")
    assert call["error"]["ename"] == "ZeroDivisionError"


def test_json_carries_what_utf8_can_not(replsvc):
    done = replsvc.run("--json", r"'\ud800'")
    assert json.loads(done.stdout)["result"]["text/plain"] == r"'\ud800'"
    done = replsvc.run("--json", r"raise ValueError('\ud800')")
    assert json.loads(done.stdout)["status"] == "error"


# Where the code comes from


def test_code_is_read_from_a_file_in_its_own_encoding(replsvc, tmp_path):
    path = tmp_path / "code.py"
    path.write_bytes("# coding: latin-1\nprint('é')\n".encode("latin-1"))
    done = replsvc.run("-f", str(path))
    assert (done.returncode, done.stdout.decode()) == (0, "é\n")


def test_code_is_read_from_standard_input(replsvc):
    done = replsvc.run("-", feed=b"\xef\xbb\xbfx = 20\r\nx + 1\r\n")
    assert (done.returncode, done.stdout) == (0, b"21\n")


def test_code_may_begin_with_a_dash(replsvc):
    assert replsvc.run("--", "-1 + 3").stdout == b"2\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], b"there is no code to run. Give it as an argument"),
        (["1", "-f", "x.py"], b"Give one of them."),
        (["-f", "missing.py"], b"missing.py can't be read: No such file or directory."),
        (["-f", "."], b". can't be read: Is a directory."),
        (["--env", "A", "1"], b"--env: 'A' is not NAME=VALUE."),
        (["--mount", "a:b:c:d", "1"], b"--mount: 'a:b:c:d' is not SRC[:DST][:rw]."),
        (["--mount", "a:../b", "1"], b"'../b' is not a path beneath the workspace"),
        (["--mount", "missing", "1"], b"there is no "),
        (["--timeout", "-1", "1"], b"--timeout: limits.timeout_s: Input should be greater than 0"),
        (
            ["--timeout", "soon", "1"],
            b"--timeout: limits.timeout_s: Input should be a valid number",
        ),
        (["--isolation", "some", "1"], b"--isolation: isolation: Input should be 'required'"),
        (["--backend", "cloud", "1"], b"backend: Input should be 'local'"),
        (["--python", "a", "--environment", "b", "1"], b"exclude each other"),
        (["--ext", "missing.py", "1"], b"'missing.py' does not exist"),
        (["--ext", "x=[1]", "1"], b"the opts of 'x' must be a JSON object"),
        (["--config", "missing.toml", "1"], b"there is no configuration file missing.toml."),
        (["--nonsense", "1"], b"No such option: --nonsense"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_exits_2_and_says_what_to_do(replsvc, args, said):
    done = replsvc.run(*args)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert replsvc.left_behind() == []


def test_a_dash_on_a_terminal_does_not_wait_for_typing(replsvc):
    controller, terminal = pty.openpty()
    try:
        done = replsvc.run("-", stdin=terminal)
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.returncode == 2
    assert b"standard input is a terminal" in done.stderr


def test_code_that_is_no_text_is_refused(replsvc, tmp_path):
    path = tmp_path / "code.py"
    path.write_bytes(b"x = '\xff'\n")
    done = replsvc.run("-f", str(path))
    assert done.returncode == 2
    assert b"code.py is not text" in done.stderr


def test_an_endless_input_is_refused_at_the_limit(replsvc):
    done = replsvc.run("-f", "/dev/zero")
    assert done.returncode == 2
    assert b"/dev/zero has more than 1048576 bytes" in done.stderr


# What the session is


def test_variables_and_mounts_are_there(replsvc, tmp_path):
    (tmp_path / "data.txt").write_text("content")
    code = "import os; print(os.environ['A']); print(open('in/d.txt').read())"
    done = replsvc.run("--env", "A=x=é $B", "--mount", "data.txt:in/d.txt", code)
    assert (done.stdout.decode(), done.returncode) == ("x=é $B\ncontent\n", 0)


def test_extensions_come_from_the_command_line_after_those_of_the_settings(replsvc, tmp_path):
    none = "def description(opts):\n    return None\n"
    (tmp_path / "first.py").write_text(f"{none}def code(opts):\n    return 'names = [1]'\n")
    (tmp_path / "second.py").write_text(
        f"{none}def code(opts):\n    return 'names.append(%r)' % opts['more']\n"
    )
    (tmp_path / "replsvc.toml").write_text('extensions = ["first.py"]\n')
    done = replsvc.run("--ext", 'second.py={"more": "it"}', "names")
    assert (done.stdout, done.stderr, done.returncode) == (b"[1, 'it']\n", b"", 0)


def test_a_failing_setup_names_the_extension_and_its_line(replsvc, tmp_path):
    (tmp_path / "bad.py").write_text(
        "from replsvc import quote\n"
        "def description(opts):\n"
        "    return None\n"
        "def setup():\n"
        "    print('on the way')\n"
        "    1 / 0\n"
        "def code(opts):\n"
        "    return quote(setup)\n"
    )
    done = replsvc.run("--ext", "bad.py", "1")
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (70, b"")
    assert "on the way" in said
    assert f"{tmp_path / 'bad.py'}" in said
    assert "extension 'bad': its setup code raised ZeroDivisionError" in said
    assert replsvc.left_behind() == []


def test_an_environment_of_the_settings_is_used(replsvc, tmp_path):
    (tmp_path / "replsvc.toml").write_text(
        'isolation = "none"\n[environments.mine.env]\nHELLO = "there"\n'
    )
    done = replsvc("run", "--environment", "mine", "import os; os.environ['HELLO']")
    assert (done.stdout, done.returncode) == (b"'there'\n", 0)


def test_any_virtual_environment_with_ipykernel_runs_the_code(replsvc, tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        "import sys, shutil; print(sys.prefix, sys.base_prefix, shutil.which('python'), sep='\\n')"
    )
    for given in ("venv", "venv/bin/python"):
        done = replsvc.run("--python", given, code)
        prefix, base, found = done.stdout.decode().splitlines()
        assert (prefix, found) == (str(venv), str(venv / "bin" / "python"))
        assert base != prefix


def test_a_module_that_is_missing_says_what_works_here(replsvc):
    done = replsvc.run("import nothing_of_the_kind")
    assert done.returncode == 1
    assert b"\nreplsvc: nothing_of_the_kind is not installed here. Importable in" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--python", "/missing/python"], b"there is no Python at /missing/python."),
        (["--environment", "missing"], b"there is no environment 'missing'."),
        (["--kernel", "missing"], b"missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_machine_can_not_give_exits_70(replsvc, args, said):
    done = replsvc.run(*args, "1")
    assert (done.returncode, done.stdout) == (70, b"")
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert replsvc.left_behind() == []


@pytest.mark.needs("userns")
def test_where_isolation_can_not_be_had_the_flag_is_named(replsvc):
    done = replsvc.without_namespaces("run", "1")
    assert (done.returncode, done.stdout) == (70, b"")
    assert b"--isolation none" in done.stderr


@pytest.mark.needs("root", "userns")
def test_code_is_isolated_unless_asked_otherwise(replsvc):
    done = replsvc("run", "import os; os.getcwd(), os.path.exists('/root/.bashrc')")
    assert (done.returncode, done.stdout) == (0, b"('/session/work', False)\n")
    assert done.stderr == b""


def test_a_data_directory_keeps_the_log(replsvc, tmp_path):
    data = tmp_path / "data"
    replsvc.env["REPLSVC_DATA"] = str(data)
    assert replsvc.run("1").returncode == 0
    assert any(data.iterdir())
    assert not list(data.glob("workspaces/*"))


# Signals and streams


def test_ctrl_c_interrupts_the_cell(replsvc):
    process = replsvc.start("run", "--isolation", "none", FOREVER)
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"replsvc: interrupted" in err
    assert replsvc.left_behind() == []


def test_a_second_ctrl_c_ends_code_that_ignores_the_first(replsvc):
    code = (
        "import threading\n"
        "while True:\n"
        "    try:\n"
        "        print('ready', flush=True); threading.Event().wait()\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
    )
    replsvc.env["REPLSVC_LIMITS__INTERRUPT_GRACE_S"] = "0.2"
    process = replsvc.start("run", "--isolation", "none", code)
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert replsvc.left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_nothing(replsvc, number):
    process = replsvc.start("run", "--isolation", "none", FOREVER)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 128 + number
    assert replsvc.left_behind() == []


def test_ctrl_c_while_the_kernel_starts_leaves_nothing(replsvc, tmp_path, gate):
    (tmp_path / "slow.py").write_text(
        f"def code(opts): return {gate.code!r}\ndef description(opts): return None\n"
    )
    process = replsvc.start("run", "--isolation", "none", "--ext", "slow.py", "1")
    with gate.wait():
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    assert replsvc.left_behind() == []


def test_a_signal_while_it_is_ending_ends_it_at_once(replsvc, gate):
    process = replsvc.start("run", "--isolation", "none", gate.code)
    # While its reaper is stopped, a kernel can't be ended.
    with gate.wait() as cell, stopped_reaper(cell) as reaper:
        # Two of one kind could become one.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGHUP)
        assert no_process_left(replsvc, reaper)
    assert b"told to end at once" in err


def test_a_reader_that_goes_away_ends_it_quietly(replsvc):
    process = replsvc.start("run", "--isolation", "none", "while True: print('line')")
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141
    assert replsvc.left_behind() == []


def test_output_that_can_not_be_written_is_a_failure(replsvc):
    with Path("/dev/full").open("wb") as full:
        done = replsvc.run("1", stdout=full)
    assert done.returncode == 70
    assert b"standard output can't be written: No space left on device" in done.stderr


def test_a_standard_output_that_does_not_block_gets_everything(replsvc):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = replsvc.start("run", "--isolation", "none", "print('x' * 500_000)", stdout=writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert len(file.read()) == 500_001
    assert process.wait(60) == 0


def test_output_that_the_log_does_not_keep_is_counted(replsvc):
    replsvc.env["REPLSVC_LIMITS__MAX_LOG_BYTES"] = "1000"
    done = replsvc.run("print('x' * 1500)")
    assert (done.returncode, done.stdout) == (0, b"x" * 1000)
    assert b"replsvc: 501 bytes of output are left out" in done.stderr


def test_a_signal_that_it_was_started_to_ignore_stays_ignored(replsvc, gate):
    # As nohup does.
    process = replsvc.start(
        *("run", "--isolation", "none", f"{gate.code}\n'done'"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    with gate.wait():
        process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=60) == (b"'done'\n", b"")
    assert process.returncode == 0


def test_closed_standard_descriptors_harm_nothing(replsvc):
    def close() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    process = subprocess.Popen(
        [*replsvc.command, "run", "--isolation", "none", "1"],
        cwd=replsvc.cwd,
        env=replsvc.env,
        preexec_fn=close,
    )
    assert process.wait(60) == 0
    assert replsvc.left_behind() == []
