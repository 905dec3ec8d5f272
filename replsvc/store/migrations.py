"""From an older schema to the current one, a version at a time.

To change the schema: change `schema.py`, and append a function here that does the same to a
database of the version before, with SQL of its own (the tables in `schema.py` move on, a migration
stands still). Keep a dump of the new version with the tests: they open one of every version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, insert, inspect, select, update

from replsvc.errors import StorageError
from replsvc.store import schema

Migration = Callable[[Connection], None]

MIGRATIONS: tuple[Migration, ...] = ()
"""The n-th, counted from 1, leads from version n to version n + 1."""

_KEY = "schema_version"


def upgrade(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the database to the newest version; an empty one gets the current tables.

    Each step is one transaction: a step that fails leaves the database at the version before it.
    Raises `StorageError` for a database that isn't ours, or is of a newer version; then nothing is
    changed.
    """
    newest = len(migrations) + 1
    with connection.begin():
        tables = inspect(connection).get_table_names()
        if not tables:
            schema.metadata.create_all(connection)
            connection.execute(insert(schema.meta).values(key=_KEY, value=str(newest)))
            return
        version = _version(connection) if schema.meta.name in tables else None
    if version is None:
        raise StorageError(
            "The database holds something else than replsvc's event log.",
            hint="Choose another data directory.",
        )
    if version > newest:
        raise StorageError(
            f"The event log was written by a newer replsvc: its schema is version {version}, "
            f"this one knows up to {newest}.",
            hint="Run the newer replsvc, or choose another data directory.",
            details={"version": version, "newest_known": newest},
        )
    for step in range(version, newest):
        with connection.begin():
            migrations[step - 1](connection)
            connection.execute(
                update(schema.meta).where(schema.meta.c.key == _KEY).values(value=str(step + 1))
            )


def _version(connection: Connection) -> int | None:
    found = connection.execute(
        select(schema.meta.c.value).where(schema.meta.c.key == _KEY)
    ).scalar_one_or_none()
    return int(found) if found is not None and found.isdecimal() and int(found) >= 1 else None
