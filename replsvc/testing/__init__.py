"""For tests of extensions, with pytest: sessions that are open in milliseconds.

    from replsvc.testing import extension_session  # in conftest.py: a fixture

    def test_it_greets(extension_session):
        with extension_session(greeter) as session:
            assert session.call("greet", {"name": "Ada"}).text == "Hello, Ada"

In async tests, with pytest-trio, it is `async with` and `await`, otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replsvc.testing.sessions import AsyncExtensionSession, ExtensionSession, Opening, Sessions

__all__ = [
    "AsyncExtensionSession",
    "ExtensionSession",
    "Opening",
    "Sessions",
    "extension_session",
]


@pytest.fixture(scope="session")
def extension_session() -> Iterator[Sessions]:
    """Opens sessions with extensions, all on one coordinator, until the test run ends.

    For other settings make a fixture of your own that does the same with `Sessions(config)`.
    """
    with Sessions() as sessions:
        yield sessions
