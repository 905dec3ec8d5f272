from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from replsvc.store import EventLog, SessionRecord


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    """A log in `tmp_path` with the sessions s1 and s2."""
    async with EventLog.open(tmp_path) as opened:
        await opened.create_session(SessionRecord(id="s1", state="open"))
        await opened.create_session(SessionRecord(id="s2", state="open"))
        yield opened


@pytest.fixture
def hold_writer() -> Callable[[Path], AbstractContextManager[None]]:
    """Hold the database's write lock, as another program might: the writer waits at its next batch.

    So what is appended meanwhile, after a first append, lands in one batch.
    """

    @contextmanager
    def hold(directory: Path) -> Iterator[None]:
        other = sqlite3.connect(directory / "replsvc.db", isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        finally:
            other.close()

    return hold
