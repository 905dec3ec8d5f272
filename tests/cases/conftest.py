"""Cases from public reports, each on plain processes and on isolated ones: fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from replsvc.config import Config, Limits
from replsvc.coordinator import Coordinator
from replsvc.session import Session


@pytest.fixture(
    params=["none", pytest.param("best", marks=pytest.mark.needs("userns"))],
    ids=["plain", "isolated"],
)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_config(isolation: str) -> Callable[..., Config]:
    """Settings for tests: short graces."""

    def make(**limits: object) -> Config:
        return Config(
            isolation=isolation,
            limits=Limits.model_validate({"interrupt_grace_s": 0.5, **limits}),
        )

    return make


@pytest.fixture
async def coordinator(make_config: Callable[..., Config]) -> AsyncIterator[Coordinator]:
    async with Coordinator(make_config()) as coordinator:
        yield coordinator


@pytest.fixture
async def session(coordinator: Coordinator) -> AsyncIterator[Session]:
    async with coordinator.session() as session:
        yield session
