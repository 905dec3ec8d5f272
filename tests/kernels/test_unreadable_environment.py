"""An environment that sessions' users may not read: said before anything runs, with what to do."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kernel_rigs import fork_servers, isolated, opened

from replsvc_kernels.backends.session_ids import SessionIds
from replsvc_kernels.kernel import EnvironmentUnreadable, Kernel
from replsvc_kernels.messages import Stream
from replsvc_kernels.sandbox import namespaces

pytestmark = pytest.mark.needs("userns", "pidns", "seccomp")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with our packages and one of its own, below what only we can enter."""
    path = tmp_path / "private" / "env"
    path.parent.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    site = site_packages(path)
    (site / "rest.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for package in ("mine", "mine/deep", "yours"):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("")
    return path


def site_packages(environment: Path) -> Path:
    (found,) = environment.glob("lib/python3*/site-packages")
    return found


def python_of(environment: Path) -> str:
    return str(environment / "bin" / "python")


@pytest.fixture
def own_ids() -> None:
    """Skip where sessions run as ourselves: they may read what we may."""
    ids = trio.run(SessionIds().find)
    if ids.how == namespaces.SINGLE:
        pytest.skip(f"sessions have our id: {ids.missing}")


async def printed(kernel: Kernel, code: str) -> str:
    async with kernel.execute(code, cell="c") as cell:
        outputs = [output async for output in cell]
    return b"".join(one.data for one in outputs if isinstance(one, Stream)).decode()


async def test_directories_above_an_environment_need_not_be_readable(environment: Path) -> None:
    async with fork_servers() as servers:
        backend = servers.backend(python_of(environment))
        async with opened(backend, isolated(servers, "s")) as kernel:
            code = "import mine.deep; print(mine.deep.__file__)"
            assert str(environment) in await printed(kernel, code)


@pytest.mark.usefixtures("own_ids")
@pytest.mark.parametrize(
    ("hidden", "mode"),
    [
        pytest.param(lambda env: env, 0o700, id="all"),
        pytest.param(site_packages, 0o711, id="site-packages"),
        pytest.param(lambda env: site_packages(env) / "mine" / "deep", 0o700, id="subpackage"),
    ],
)
async def test_a_directory_that_only_its_owner_may_read_is_named_with_the_remedy_which_helps(
    environment: Path, hidden: Callable[[Path], Path], mode: int
) -> None:
    directory = hidden(environment)
    async with fork_servers() as servers:
        backend = servers.backend(python_of(environment))
        directory.chmod(mode)
        with pytest.raises(EnvironmentUnreadable, match=f"may not read {directory},") as refused:
            await backend.missing()
        assert refused.value.remedy == f"chmod -R go+rX {directory}"
        assert refused.value.remedy in str(refused.value)
        assert list(servers.sessions.iterdir()) == []
        subprocess.run(refused.value.remedy.split(), check=True)
        async with opened(backend, isolated(servers, "s")) as kernel:
            assert await printed(kernel, "import mine.deep; print('it is there')")


@pytest.mark.usefixtures("own_ids")
async def test_many_directories_are_one_remedy_that_names_what_is_shown_and_no_more(
    environment: Path,
) -> None:
    async with fork_servers() as servers:
        for name in ("one", "two", "three", "four"):
            (site_packages(environment) / name).mkdir(mode=0o700)
        with pytest.raises(EnvironmentUnreadable, match="/four and 3 more") as refused:
            await servers.backend(python_of(environment)).missing()
        assert refused.value.remedy == f"chmod -R go+rX {environment}"


async def test_what_is_not_imported_need_not_be_readable(environment: Path) -> None:
    for directory in (environment, environment / "lib"):
        directory.chmod(0o711)  # can be passed through
    (environment / "secrets").mkdir(mode=0o700)
    (site_packages(environment) / "mine" / "__pycache__").mkdir(mode=0o700)
    (site_packages(environment) / "not-a-module").mkdir(mode=0o700)
    async with fork_servers() as servers:
        backend = servers.backend(python_of(environment))
        async with opened(backend, isolated(servers, "s")) as kernel:
            assert await printed(kernel, "import mine; print('it is there')")
