"""A call's whole output as bytes, read in pages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from replsvc.store.reader import Reader


class OutputReader:
    """Iterate to get the bytes of a call's `output` events, in their order.

    Holds about a page of a megabyte, however much there is. Ends with what is on disk when it gets
    there; for a running call that is not yet all. Nothing needs closing.
    """

    def __init__(self, reader: Reader, session_id: str, call_id: str) -> None:
        self._reader, self._session_id, self._call_id = reader, session_id, call_id
        self._page: deque[bytes] = deque()
        self._after: int | None = 0

    def __aiter__(self) -> OutputReader:
        return self

    async def __anext__(self) -> bytes:
        """The next bytes, never none. Raises `StorageError`; the same may then be asked again."""
        await trio.lowlevel.checkpoint()
        while True:
            while self._page:
                if chunk := self._page.popleft():
                    return chunk
            after = self._after
            if after is None:
                raise StopAsyncIteration
            blobs, self._after = await self._reader.blobs(self._session_id, self._call_id, after)
            self._page.extend(blobs)
