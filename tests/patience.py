"""How long tests wait for what the service promises soon."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

import trio


def promptly() -> AbstractContextManager[trio.CancelScope]:
    """Fails after a second, as promised; later where others have the processors meanwhile."""
    share = os.getloadavg()[0] / (os.cpu_count() or 1)
    return trio.fail_after(max(1.0, 5.0 * share))
