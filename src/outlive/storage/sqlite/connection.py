"""One SQLite file: its lock, its schema, its one writer and its readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from outlive.core.errors import SettingsError, StorageUnavailable
from outlive.core.events import Json
from outlive.ports.storage import LoadedItems
from outlive.storage.queries import SCHEMA_VERSION, find_migrations
from outlive.storage.rows import encode
from outlive.storage.sqlite import SQL, staging
from outlive.storage.sqlite.files import DatabaseFile
from outlive.storage.sqlite.writer import BUSY_MS, Checkpointer, SqliteWriter, T, Work

StagedWork = Callable[[sqlite3.Connection, staging.StagedItems], T]

SECRET_BYTES = 32
CHECKPOINT_BUSY_MS = 100
READERS = 3


class SqliteDatabase:
    """A SQLite file: one connection that writes, and a few that read."""

    sign, queries = "?", SQL

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = DatabaseFile(path)
        try:
            with contextlib.ExitStack() as opened:  # closes the connection if the next step fails
                connection = opened.enter_context(contextlib.closing(_open(path)))
                _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                self._file.warn_about_log(frames)
                self.version_before = _migrate(connection, path)  # of the schema
                beside = _open(path)
                opened.pop_all()
        except sqlite3.Error as error:
            raise SettingsError(f"The database {path} cannot be opened: {error}.") from error
        connection.execute("PRAGMA busy_timeout = 0")  # see writer.py
        self._file.mark_open()
        self._checkpointer = Checkpointer(path, beside, self._file)
        self._writer = SqliteWriter(connection, self._checkpointer, self._file)
        self.write = self._writer.write
        self._loop = asyncio.get_running_loop()
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="outlive-reader")
        self._opened: list[sqlite3.Connection] = []

    async def write_staged(self, name: str, work: StagedWork[T], staging_id: str, items: list[Json]) -> T:
        """Stage items, each piece in a transaction of its own; then do the work that accepts them."""
        staged = await asyncio.to_thread(staging.stage, staging_id, items)
        try:
            for row in staged.rows():
                await self.write("stage", lambda db, row=row: db.execute(SQL["add_piece"], row))  # type: ignore[misc]
            return await self.write(name, lambda db: work(db, staged), heavy=True)
        finally:
            # The outcome is certain by now, and must be returned; if the storage is down, the next start drops the
            # pieces of a request that was not accepted.
            with contextlib.suppress(StorageUnavailable):
                await self.write("stage", lambda db: db.execute(SQL["drop_unaccepted"], (staging_id,)))

    def read(self, name: str, work: Work[T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._readers, self._read, name, work)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        return await self.read("find", lambda db: db.execute(statement, _to_sql(values)).fetchall())

    async def change(self, name: str, statement: str, *values: Any) -> list[Any]:
        return await self.write(name, lambda db: db.execute(statement, values).fetchall())

    async def load(self, statement: str, *values: Any) -> list[Json]:
        return await self.read("find", lambda db: staging.load_all(db, db.execute(statement, _to_sql(values))))

    def count_connections(self) -> dict[str, tuple[int, int]]:
        return {}  # threads, not a pool

    async def load_some(self, statement: str, *values: Any, most: int) -> LoadedItems:
        def work(db: sqlite3.Connection) -> LoadedItems:
            items, left = staging.load_some(db, db.execute(statement, _to_sql(values)), most)
            return LoadedItems(items, left >= 0)

        return await self.read("find", work)

    async def probe(self) -> bool:
        """Return True if the database can be written. Tries it only if the last write failed."""
        self._file.look()
        if not self._writer.healthy or self._file.lost:
            with contextlib.suppress(StorageUnavailable):
                # Sets what is set already, but a page is written for it: only that shows whether the disk has room.
                await self.write("probe", lambda db: db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}"))
        return self._writer.healthy and not self._file.lost

    async def find_secret(self, name: str) -> bytes:
        """Return the server's own secret of that name; draws it the first time."""

        def work(db: sqlite3.Connection) -> bytes:
            db.execute(SQL["add_secret"], (name, os.urandom(SECRET_BYTES)))
            return bytes(db.execute(SQL["find_secret"], (name,)).fetchone()[0])

        return await self.write("find secret", work)

    async def checkpoint(self) -> None:
        """Move the log into the file and empty it, on a connection of its own: no transaction can do that."""

        def work() -> None:
            try:
                with contextlib.closing(_open(self.path)) as connection:
                    # Writes are blocked while the log is emptied, so most of it is moved before that ...
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    # ... and the wait for readers is short.
                    connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_BUSY_MS}")
                    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise StorageUnavailable("checkpoint", str(error)) from error
            if busy:
                raise StorageUnavailable("checkpoint", "a reader is active")

        await asyncio.to_thread(work)

    async def close(self) -> None:
        await self._writer.close()
        await asyncio.to_thread(self._checkpointer.close)
        self._readers.shutdown(wait=True)
        for connection in self._opened:
            connection.close()
        self._file.close()

    def _read(self, name: str, work: Work[T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = _open(self.path, read_only=True)
                self._opened.append(connection)
            return work(connection)
        except sqlite3.Error as error:
            raise StorageUnavailable(name, str(error)) from error


class SqlitePort:
    """Base of the adapters of ports on a SQLite file."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database


def _to_sql(values: tuple[Any, ...]) -> list[Any]:
    return [encode(value).decode() if isinstance(value, list) else value for value in values]


def _open(path: str, read_only: bool = False) -> sqlite3.Connection:
    # Never made anew: a file that was removed would be replaced by an empty one.
    uri = f"file:{quote(path)}?mode=rw"
    connection = sqlite3.connect(uri, isolation_level=None, check_same_thread=False, cached_statements=256, uri=True)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            return connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # on a Mac a plain fsync stops at the drive's cache
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `Checkpointer`
        # Deleted content is overwritten with zeros, so that it is not in the file any more (D18).
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a file that a server may be using. Nothing is written, and its log is left as it is."""
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", isolation_level=None, uri=True)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the schema up to date. Returns its version before."""
    version: int
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, text in find_migrations(__package__, version, f"database {path}"):
        connection.executescript(f"BEGIN IMMEDIATE; {text}; PRAGMA user_version = {number}; COMMIT;")
    return version
