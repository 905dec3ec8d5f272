"""The tables, as SQLAlchemy Core sees them, at the newest version (`migrations`).

Types are portable: text, big integers, bytes. JSON stands as ASCII text, because a database's own
JSON type refuses what a cell may well print (NUL, lone surrogates). Times are microseconds since
1970.

`events` keeps SQLite's rowid: without it, rows with an output's bytes took twice as long to write.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

from replsvc.store.encoding import from_micros, to_micros


class Instant(TypeDecorator[datetime]):
    """A moment in UTC with microseconds, as an integer."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """Python to database."""
        return None if value is None else to_micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Database to Python."""
        return None if value is None else from_micros(value)


metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Index("sessions_by_tenant", "tenant", "created_at"),
)

events = Table(
    "events",
    metadata,
    Column("session_id", Text, ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("call_id", Text),
    Column("kind", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("data", Text, nullable=False),
    Column("blob", LargeBinary),
    # `kind` is in it so that finding one of a call's events doesn't visit the rows of its output.
    Index("events_by_call", "session_id", "call_id", "seq", "kind"),
)
