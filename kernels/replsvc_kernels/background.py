"""A nursery for tasks that serve a body: they live exactly as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """Give a nursery whose tasks are cancelled when the body ends.

    The body's own exception leaves as it is, not inside an exception group: these tasks are a
    detail of whoever opens this. A task that fails cancels the body, and leaves as a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BaseException as error:  # noqa: BLE001 - raised again below, outside the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
