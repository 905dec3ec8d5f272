"""A coordinator on real kernels, and a session of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from outside import given, kernel_pid

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.session import Session

MakeConfig = Callable[..., Config]


@pytest.fixture(
    params=["none", pytest.param("best", marks=pytest.mark.needs("userns"))],
    ids=["plain", "isolated"],
)
def isolation(request: pytest.FixtureRequest) -> str:
    """Each rule holds for plain processes and for isolated ones."""
    return str(request.param)


@pytest.fixture
def make_config(isolation: str) -> MakeConfig:
    """Settings for tests: short graces."""

    def make(**limits: object) -> Config:
        return Config(
            isolation=isolation,
            limits=Limits.model_validate({"interrupt_grace_s": 0.5, **limits}),
        )

    return make


@pytest.fixture
async def coordinator(make_config: MakeConfig) -> AsyncIterator[Coordinator]:
    async with Coordinator(make_config()) as coordinator:
        yield coordinator


@pytest.fixture
async def session(coordinator: Coordinator) -> AsyncIterator[Session]:
    async with coordinator.session() as session:
        yield session


# Where one session attacks, and another is watched; each file has the coordinator that it wants.


@pytest.fixture
async def neighbour(coordinator: Coordinator) -> AsyncIterator[Session]:
    """A session with a name to lose; its kernel must be the same at the end, and answer."""
    async with coordinator.session(**given()) as session:
        await session.run("kept = 'as it was'")
        before = kernel_pid(session)
        yield session
        assert (await session.run("kept")).text == "=> 'as it was'"
        assert kernel_pid(session) == before


@pytest.fixture
async def offender(coordinator: Coordinator, neighbour: Session) -> AsyncIterator[Session]:
    async with coordinator.session(**given()) as session:
        yield session
