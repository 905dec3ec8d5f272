"""Two environments of one coordinator: each has a fork server of its own, and neither mixes."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import trio

from replsvc.config import Config, Environment
from replsvc.coordinator import Coordinator
from replsvc.session import Session

WHERE = "import sys, only_here; print(sys.prefix, only_here.NAME)"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two virtual environments; a module of one name says in each which of them it is of."""
    made = {}
    for name in ("red", "blue"):
        made[name] = path = tmp_path_factory.mktemp("environments") / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
        (packages,) = path.glob("lib/python*/site-packages")
        (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
        (packages / "only_here.py").write_text(f"NAME = {name!r}\n")
    return made


async def test_sessions_of_two_environments_work_side_by_side(
    isolation: str, environments: dict[str, Path]
) -> None:
    found: dict[str, list[str]] = {"red": [], "blue": []}

    async def work(session: Session, name: str) -> None:
        for turn in range(5):
            await session.run(f"mine = {name!r}, {turn}")
            call = await session.run(f"{WHERE}; print(mine)")
            found[name].append(call.text)

    config = Config(
        isolation=isolation,
        environments={
            name: Environment(python=path / "bin" / "python") for name, path in environments.items()
        },
    )
    async with (
        Coordinator(config) as coordinator,
        coordinator.session(environment="red") as red,
        coordinator.session(environment="blue") as blue,
        coordinator.session(environment="red") as another,
    ):
        if isolation == "best":
            servers = coordinator._backends._servers
            pids = {backend._server.pid for backend in servers._backends.values()}
            assert len(pids) == 2
            assert None not in pids
        await another.run("mine = 'another'")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, red, "red")
            nursery.start_soon(work, blue, "blue")
        for name, said in found.items():
            prefix = environments[name]
            assert said == [f"{prefix} {name}\n{(name, turn)}" for turn in range(5)]
        assert (await another.run("mine")).text == "=> 'another'"
        # One that ends takes nothing from the other.
        await red.restart()
        assert (await red.run(WHERE)).text == f"{environments['red']} red"
        assert (await blue.run("mine")).text == "=> ('blue', 4)"
