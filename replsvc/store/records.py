"""What the store keeps besides events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from replsvc.calls import Value, utc_now


class SessionRecord(Value):
    """One session as the store knows it: enough to list it, and to open it again.

    `spec` is plain JSON, and what it and `state` mean is the coordinator's business. Times are UTC;
    `updated_at` moves with every change of the record, not with the session's events.
    """

    id: str = Field(min_length=1)
    tenant: str = "default"
    state: str
    spec: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=utc_now)
    updated_at: datetime = Field(default_factory=utc_now)
