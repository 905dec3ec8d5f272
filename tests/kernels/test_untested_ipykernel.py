"""An ipykernel that our guest was not tested with: its own application runs, or nothing does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_rigs import fork_servers, isolated, opened

import untested
from replsvc_kernels.backends.process import ProcessBackend
from replsvc_kernels.backends.support import VERSIONS, support
from replsvc_kernels.kernel import GuestUntested, KernelError, LaunchError, LaunchSpec
from replsvc_kernels.messages import SetupCode, Stream

LOOK = """
import ipykernel, os
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t") for line in lines)
print(
    ipykernel.__version__, os.environ["GIVEN"], os.getcwd(), os.getpid() < 10,
    int(status["CapEff"], 16), status["NoNewPrivs"], status["Seccomp"],
    os.listdir("."), os.listdir("/session/run"),
)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return untested.environment(tmp_path_factory.mktemp("untested") / "venv")


async def test_its_own_application_runs_without_our_guest(
    python: str, spec: LaunchSpec, runtime_dir: Path
) -> None:
    async with opened(ProcessBackend(str(runtime_dir)), replace(spec, python=python)) as kernel:
        assert (kernel.info.language, kernel.info.has_guest) == ("python", False)
        code = "import ipykernel, sys; print(ipykernel.__version__, sys.prefix)"
        async with kernel.execute(code, cell="c") as cell:
            outputs = [output async for output in cell]
        printed = b"".join(one.data for one in outputs if isinstance(one, Stream)).decode()
        assert printed.split() == [untested.VERSION, str(Path(python).parents[1])]
        with pytest.raises(KernelError, match="no guest"):
            await kernel.setup(SetupCode("s", "x = 1", "<s>"))


@pytest.mark.needs("userns", "pidns", "seccomp")
async def test_our_guest_does_not_run_isolated_and_the_error_says_with_which_versions_it_does(
    python: str,
) -> None:
    async with fork_servers() as servers:
        backend = servers.backend(python)
        with pytest.raises(GuestUntested, match=f"{untested.VERSION}.*>=6.29,<8.*pip install"):
            async with backend.open(isolated(servers, "s")):
                pass


@pytest.mark.needs("userns", "pidns", "seccomp")
async def test_its_own_application_runs_isolated(python: str) -> None:
    async with fork_servers() as servers:
        backend = servers.backend(python, preload=("no_such_module",), stock=True)
        async with opened(backend, isolated(servers, "s", env={"GIVEN": "1"})) as kernel:
            assert (kernel.info.has_guest, kernel.info.isolation != "none") == (False, True)
            async with kernel.execute(LOOK, cell="c") as cell:
                outputs = [output async for output in cell]
            printed = b"".join(one.data for one in outputs if isinstance(one, Stream)).decode()
            assert printed == f"{untested.VERSION} 1 /session/work True 0 1 2 [] []\n"


@pytest.mark.needs("userns", "pidns", "seccomp")
async def test_a_program_that_can_not_be_executed_says_why(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fork_servers() as servers:
        backend = servers.backend(python, stock=True)
        monkeypatch.setattr(backend, "_python", "/no/such/python")
        with pytest.raises(LaunchError, match="No such file or directory"):
            async with backend.open(isolated(servers, "s")):
                pass


async def test_an_environment_says_whether_our_guest_runs_in_it(python: str) -> None:
    theirs, ours = await support(python), await support(sys.executable)
    assert (theirs.ipykernel, theirs.tested) == (untested.VERSION, False)
    assert ours.tested
    assert ours.wanted == theirs.wanted == "ipykernel>=6.29,<8"


async def test_what_is_no_python_can_not_say() -> None:
    with pytest.raises(LaunchError, match="can't say which ipykernel"):
        await support("/bin/echo")


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("6.28.0", False),
        ("6.29.0a1", True),
        ("6.29.5", True),
        ("7", True),
        ("7.12.1", True),
        ("8.0.0a1", False),
        ("10.0", False),
        ("unknown", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, tested: bool) -> None:
    code = f"import runpy; print(runpy.run_path({VERSIONS!r})['is_tested']({version!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tested}\n"
