"""The database in its directory: opening, the lock that keeps others out, and connections.

Everything here blocks, and is called from worker threads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event

from replsvc.errors import StorageError
from replsvc.store.faults import storage_error
from replsvc.store.migrations import upgrade

Durability = Literal["process", "power"]

READERS = 4
_BUSY_TIMEOUT_S = 5.0
"""For other programs that look into the file; among ourselves nobody waits for a lock."""
_WAL_BYTES_KEPT = 64 * 1024 * 1024


class Database:
    """An open data directory. `close` gives up the lock, and removes a private directory."""

    def __init__(self, directory: Path | None, durability: Durability) -> None:
        """Open, creating what is missing; None makes a private directory that `close` removes.

        Raises `StorageError`; then nothing is left open.
        """
        self._synchronous = "FULL" if durability == "power" else "NORMAL"
        with ExitStack() as stack:
            if directory is None:
                directory = Path(tempfile.mkdtemp(prefix="replsvc-"))
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
            self.directory = directory.absolute()
            self.path = self.directory / "replsvc.db"
            try:
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.callback(os.close, _lock(self.directory))
                # SQLite gives its other files the mode of the first.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
                self._writing = create_engine(
                    "sqlite://", creator=self._connect_writer, poolclass=NullPool
                )
                event.listen(self._writing, "begin", _begin)
                self.reading: Engine = create_engine(
                    "sqlite://",
                    creator=self._connect_reader,
                    poolclass=QueuePool,
                    pool_size=READERS,
                    max_overflow=0,
                )
                stack.callback(self.reading.dispose)
                with self.connect() as connection:
                    upgrade(connection)
                    # From now on a reader's connection is open: with the last one SQLite takes its
                    # shared memory away, and on a full disk nobody could read until there is room.
                    with self.reading.connect() as reader:
                        reader.exec_driver_sql("SELECT 1 FROM meta").close()
            except Exception as error:
                raise storage_error(error, "opened", self.directory) from error
            self._opened = stack.pop_all()

    def connect(self) -> Connection:
        """A connection that writes. There is one at a time: the writer's. Raises SQLAlchemy's."""
        return self._writing.connect()

    def close(self) -> None:
        """Close what is open. The writer's connection and the readers' must be back by now."""
        self._opened.close()

    def _connect_writer(self) -> sqlite3.Connection:
        return _connect(
            self.path,
            "journal_mode=WAL",
            f"synchronous={self._synchronous}",
            "foreign_keys=ON",
            f"journal_size_limit={_WAL_BYTES_KEPT}",
        )

    def _connect_reader(self) -> sqlite3.Connection:
        return _connect(self.path, "query_only=ON")


def _connect(path: Path, *pragmas: str) -> sqlite3.Connection:
    with ExitStack() as stack:
        # No implicit transactions (`isolation_level`): they begin where we say so. One thread at a
        # time has a connection, but not always the same one.
        connection = stack.enter_context(
            closing(
                sqlite3.connect(
                    path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
            )
        )
        for pragma in pragmas:
            answer = connection.execute(f"PRAGMA {pragma}").fetchone()
            if pragma == "journal_mode=WAL" and answer != ("wal",):
                raise StorageError(
                    f"The file system of {path.parent} can't hold the event log: SQLite has no "
                    "write-ahead log there.",
                    hint="Choose a data directory on a local disk.",
                )
        stack.pop_all()
    return connection


def _begin(connection: Connection) -> None:
    # IMMEDIATE, so that a lock held by another program is waited for here and not amid a write.
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute("BEGIN IMMEDIATE")


def _lock(directory: Path) -> int:
    """Take the directory for this process; the lock lasts as long as the descriptor is open."""
    descriptor = os.open(directory / "replsvc.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(descriptor, b"%-20d\n" % os.getpid(), 0)
    except BlockingIOError:
        written = os.pread(descriptor, 20, 0).strip()  # empty if the holder is about to say it
        os.close(descriptor)
        holder = f"process {int(written)}" if written.isdigit() else "another process"
        raise StorageError(
            f"The data directory {directory} is in use by {holder}.",
            hint="Stop that one first, or choose another data directory.",
            details={"pid": int(written)} if written.isdigit() else {},
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
