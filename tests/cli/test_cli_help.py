from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

# What a command may need takes long to import, and help needs none of it.
HEAVY = ("fastapi", "hypercorn", "jupyter_client", "pydantic", "rich", "sqlalchemy", "trio", "zmq")
LOADED = (
    "import sys\n"
    "sys.argv = ['replsvc', *sys.argv[1:]]\n"
    "from replsvc.cli import main\n"
    "try:\n"
    "    main()\n"
    "finally:\n"
    "    print('LOADED', *sorted(sys.modules), file=sys.stderr)\n"
)


def modules(*args: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *args], capture_output=True, check=True, text=True
    )
    assert done.stderr.startswith("LOADED ")
    return set(done.stderr.split())


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_it_answers_without_importing_what_only_commands_need(flag):
    assert modules(flag).isdisjoint(HEAVY)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, replsvc; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert set(done.stdout.split()).isdisjoint({*HEAVY, "structlog", "asyncio"})


def test_run_imports_nothing_of_the_http_service(replsvc):
    loaded = modules("run", "--isolation", "none", "--json", "1")
    assert "replsvc.coordinator" in loaded
    assert loaded.isdisjoint({"fastapi", "hypercorn", "jupyter_client"})


@pytest.mark.parametrize("command", ["run", "serve", "doctor", "config"])
def test_each_command_documents_its_exit_status(replsvc, command):
    done = replsvc(command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Exit status:" in done.stdout
    assert b"\x08" not in done.stdout


def test_run_lists_every_status_that_it_may_exit_with(replsvc):
    lines = replsvc("run", "--help").stdout.decode().splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("    ") and line.split()}
    assert {"0", "1", "2", "70", "124", "130", "137", "141", "143"} <= listed


def test_the_version_is_the_installed_one(replsvc):
    assert replsvc("--version").stdout.decode() == f"replsvc {version('replsvc')}\n"


def test_the_console_script_is_the_same_program(replsvc):
    scripts = entry_points(group="console_scripts")
    (script,) = [entry for entry in scripts if entry.name == "replsvc"]
    assert (script.name, script.value) == ("replsvc", "replsvc.cli:main")
    assert callable(script.load())


def test_an_unknown_command_is_wrong_usage(replsvc):
    done = replsvc("rum")
    assert done.returncode == 2
    assert b"No such command" in done.stderr
