from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from replsvc.calls import Draft
from replsvc.errors import StorageError
from replsvc.store import EventLog, SessionRecord
from replsvc.store.database import Database
from replsvc.store.migrations import MIGRATIONS, upgrade

DATABASES = sorted((Path(__file__).parent / "databases").glob("v*.sql"))


def build(directory: Path, dump: Path) -> None:
    directory.mkdir(exist_ok=True)
    connection = sqlite3.connect(directory / "replsvc.db")
    connection.executescript(dump.read_text())
    connection.close()


def version(directory: Path) -> str:
    connection = sqlite3.connect(directory / "replsvc.db")
    found = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    connection.close()
    return str(found[0])


def shape(directory: Path) -> dict[str, object]:
    """Tables, columns, keys and indexes, however they came to be."""
    database = Database(directory, "process")
    try:
        with database.connect() as connection:
            look = inspect(connection)
            return {
                table: (
                    [(c["name"], str(c["type"]), c["nullable"]) for c in look.get_columns(table)],
                    look.get_pk_constraint(table)["constrained_columns"],
                    [
                        (k["constrained_columns"], k["options"])
                        for k in look.get_foreign_keys(table)
                    ],
                    sorted((i["name"], *i["column_names"]) for i in look.get_indexes(table)),
                )
                for table in look.get_table_names()
            }
    finally:
        database.close()


def test_there_is_a_database_of_every_version() -> None:
    assert [path.stem for path in DATABASES] == [f"v{n}" for n in range(1, len(MIGRATIONS) + 2)]


@pytest.mark.parametrize("dump", DATABASES, ids=lambda path: path.stem)
async def test_a_database_of_any_version_opens_with_all_it_held(tmp_path: Path, dump: Path) -> None:
    build(tmp_path / "old", dump)

    async with EventLog.open(tmp_path / "old") as log:
        (record,) = await log.sessions()
        events = await log.read("s1")
        assert (record.id, record.tenant, record.state) == ("s1", "acme", "open")
        assert record.spec == {"tool": "repl", "lone": "\ud800"}
        assert record.created_at.isoformat() == "2026-01-02T03:04:05.678901+00:00"
        assert [(e.seq, e.kind, e.call_id, e.data, e.blob) for e in events] == [
            (1, "call_started", "c1", {"tool": "repl"}, None),
            (2, "output", "c1", {"stream": "stdout"}, b"\x00\xff\n"),
            (3, "call_finished", "c1", {"status": "ok", "text": "\ud800\x00"}, None),
        ]
        assert (await log.append("s1", [Draft(kind="status")]).wait())[0].seq == 4

    assert version(tmp_path / "old") == str(len(MIGRATIONS) + 1)


@pytest.mark.parametrize("dump", DATABASES, ids=lambda path: path.stem)
def test_a_migrated_database_is_shaped_like_a_new_one(tmp_path: Path, dump: Path) -> None:
    build(tmp_path / "old", dump)
    assert shape(tmp_path / "old") == shape(tmp_path / "new")


async def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with EventLog.open(tmp_path) as log:
        await log.create_session(SessionRecord(id="s1", state="open"))
    path = tmp_path / "replsvc.db"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema_version'")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StorageError, match="newer replsvc: its schema is version 999") as caught:
        async with EventLog.open(tmp_path):
            pytest.fail("it was opened")
    assert caught.value.hint
    assert path.read_bytes() == before


def test_steps_run_in_order_and_a_failing_one_leaves_the_version_before_it(
    tmp_path: Path,
) -> None:
    build(tmp_path, DATABASES[0])

    def name_sessions(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE sessions ADD COLUMN name TEXT"))
        connection.execute(text("UPDATE sessions SET name = 'session ' || id"))

    def fail(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE sessions RENAME COLUMN name TO title"))
        raise ZeroDivisionError

    def shout(connection: Connection) -> None:
        connection.execute(text("UPDATE sessions SET name = upper(name)"))

    database = Database(tmp_path, "process")
    try:
        with database.connect() as connection:
            with pytest.raises(ZeroDivisionError):
                upgrade(connection, (name_sessions, fail))
            assert version(tmp_path) == "2"
            with connection.begin():
                names = connection.execute(text("SELECT name FROM sessions")).scalars().all()
            assert names == ["session s1"]

            upgrade(connection, (name_sessions, shout))
            assert version(tmp_path) == "3"
            with connection.begin():
                names = connection.execute(text("SELECT name FROM sessions")).scalars().all()
            assert names == ["SESSION S1"]
    finally:
        database.close()
