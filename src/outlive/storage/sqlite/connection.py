"""One SQLite file: its lock, its schema, its one writer and its readers."""

import asyncio
import contextlib
import secrets
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from outlive.core.errors import SettingsError, StorageUnavailable
from outlive.core.events import Json
from outlive.ports.database import Database, LoadedItems, Statements, Transaction, encode
from outlive.ports.database import Work as AsyncWork
from outlive.ports.ledger import Position
from outlive.ports.storage import UNBOUNDED
from outlive.storage.queries import SCHEMA_VERSION, find_migrations
from outlive.storage.sqlite import SQL, staging, threads
from outlive.storage.sqlite.files import DatabaseFile
from outlive.storage.sqlite.writer import BUSY_MS, Checkpointer, SqliteWriter, T, Work

StagedWork = Callable[[sqlite3.Connection, staging.StagedItems], T]

CHECKPOINT_BUSY_MS = 100
READERS = 3

INCREMENTAL = 2  # of auto_vacuum: the file can be shrunk in steps
_PAGES = ("auto_vacuum", "freelist_count", "page_count")
MIN_FREE_PAGES = 4096  # 16 MB: what comes and goes stays
STEP_PAGES = 64  # moved from the end of the file in one transaction, in some ms

# They change nothing. For a value of these types without an adapter, the module makes and drops an error each time.
sqlite3.register_adapter(bytes, bytes.__bytes__)
sqlite3.register_adapter(bool, int)
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]


class SqliteDatabase(Database):
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
                # Commands beside this server add none, so there are some only if there were, or are added below.
                self.has_webhooks = bool(connection.execute(SQL["has_webhooks"]).fetchall())
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
            for number, piece in enumerate(staged.pieces):
                row = (staging_id, number, piece)
                await self.write("stage", lambda db, row=row: db.execute(SQL["add_piece"], row))  # type: ignore[misc]
            return await self.write(name, lambda db: work(db, staged), heavy=True)
        finally:
            # The outcome is certain by now, and must be returned; if the storage is down, the next start drops the
            # pieces of a request that was not accepted.
            with contextlib.suppress(StorageUnavailable):
                await self.write("stage", lambda db: db.execute(SQL["drop_unaccepted"], (staging_id,)))

    def read(self, name: str, work: Work[T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._readers, self._read, name, work)

    async def fetch(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        sql = self.find_statement(statement, parts)
        return await self.read("find", lambda db: db.execute(sql, _to_sql(values)).fetchall())

    async def change(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        self.has_webhooks = self.has_webhooks or statement == "add_webhook"
        sql = self.find_statement(statement, parts)
        return await self.write(statement.replace("_", " "), lambda db: db.execute(sql, _to_sql(values)).fetchall())

    async def atomically(
        self, operation: str, work: AsyncWork[T], *, large: list[Json] | None = None, heavy: bool = False, **_: Any
    ) -> T:
        if large:
            return await self.write_staged(
                operation, lambda db, staged: _run(work(SqliteTransaction(db, staged))), secrets.token_hex(16), large
            )
        return await self.write(operation, lambda db: _run(work(SqliteTransaction(db))), heavy=heavy)

    async def load(self, statement: str, *values: Any, **parts: str) -> list[Json]:
        return (await self.load_some(statement, *values, most=UNBOUNDED, **parts)).items

    async def load_some(self, statement: str, *values: Any, most: int, **parts: str) -> LoadedItems:
        sql = self.find_statement(statement, parts)
        items, left = await self.read("find", lambda db: staging.load_some(db, db.execute(sql, _to_sql(values)), most))
        return LoadedItems(items, left >= 0)

    async def probe(self) -> bool:
        """Return True if the database can be written. Tries it only if the last write failed."""
        self._file.look()
        if not self._writer.healthy or self._file.lost:
            with contextlib.suppress(StorageUnavailable):
                # Sets what is set already, but a page is written for it: only that shows whether the disk has room.
                await self.write("probe", lambda db: db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}"))
        return self._writer.healthy and not self._file.lost

    async def erase_staged(self) -> bool:
        if not await self.fetch("has_erased"):
            return False
        await self.write("erase", staging.erase_some, heavy=True)
        return True

    async def shrink(self) -> bool:
        pages = await self.read("find", lambda db: [db.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES])
        incremental, free, total = pages
        if incremental != INCREMENTAL or free < MIN_FREE_PAGES or free < total / 4:
            return False
        step = f"PRAGMA incremental_vacuum({STEP_PAGES})"
        await self.write("shrink", lambda db: db.execute(step).fetchall(), heavy=True)
        return True

    async def scrub(self) -> None:
        """Move the log into the file and empty it, on a connection of its own: no transaction can do that. Deleted
        content was overwritten with zeros in the pages; the log still holds the pages as they were."""

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


class SqliteTransaction(Transaction):
    """A transaction of the one writer. No method waits, so that `_run` can run what calls them; none needs a lock."""

    def __init__(self, db: sqlite3.Connection, staged: staging.StagedItems | None = None) -> None:
        self._db = db
        self._staged = staged

    async def fetch(self, name: str, *values: Any) -> list[Any]:
        return self._db.execute(SQL[name], _to_sql(values)).fetchall()

    async def run_all(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        self._db.executemany(SQL[name], rows)

    async def add_items(self, thread: int, first: int, items: list[Json]) -> None:
        threads.add_items(self._db, Position(thread, first), items, staged=self._staged)

    async def read_bodies(self, name: str, *values: Any) -> list[Any]:
        return [(staging.load_raw(self._db, body),) for (body,) in await self.fetch(name, *values)]

    async def erase_items(self, name: str, *values: Any) -> list[Any]:
        rows = await self.fetch(name, *values)
        staging.mark_erased(self._db, rows)
        return rows

    async def drop_item(self, thread: int, item_id: str) -> bool:
        bodies = await self.fetch("drop_item", thread, item_id)
        for (body,) in bodies:
            staging.wipe(self._db, body)
        return bool(bodies)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run work that awaits nothing but the methods of a `SqliteTransaction`."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise RuntimeError("the work of a transaction must not wait")


class SharedFile(Statements):
    """A SQLite file for a command that makes short changes, whether or not a server is using it."""

    queries = SQL

    def __init__(self, path: str) -> None:
        self._db = _open(path)

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open a file, and bring its schema up to date first if no server is using it. Raises SettingsError."""
        if not _is_current(path):
            await SqliteDatabase(str(path)).close()
        return cls(str(path))

    async def change(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        try:
            return self._db.execute(self.find_statement(statement, parts), _to_sql(values)).fetchall()
        except sqlite3.Error as error:
            raise StorageUnavailable(statement.replace("_", " "), str(error)) from error

    fetch = change

    async def atomically(self, operation: str, work: AsyncWork[T], **_: Any) -> T:
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                return _run(work(SqliteTransaction(self._db)))
        except sqlite3.Error as error:
            raise StorageUnavailable(operation, str(error)) from error

    async def load(self, statement: str, *values: Any, **parts: str) -> list[Json]:
        return staging.load_some(self._db, await self.fetch(statement, *values, **parts), UNBOUNDED)[0]

    async def close(self) -> None:
        self._db.close()


def _is_current(path: Path) -> bool:
    if not path.exists():
        return False
    with contextlib.closing(connect_read_only(path)) as db:
        return bool(db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,))


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
        if not Path(path).stat().st_size:  # a new file: in another one, this would write over a damaged log
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # see `SqliteDatabase.shrink`
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


def check_file(path: Path) -> None:
    """Raise SettingsError for a file that is missing or no database of Outlive. Nothing is made or changed."""
    if not path.exists():
        raise SettingsError(f"There is no database {path}.")
    try:
        with contextlib.closing(connect_read_only(path)) as connection:
            check_content(connection, f"database {path}")
    except sqlite3.Error as error:
        raise SettingsError(f"The database {path} cannot be opened: {error}.") from error


def check_content(connection: sqlite3.Connection, name: str) -> None:
    """Raise SettingsError for what is no database of Outlive, or one of a later version."""
    find_migrations(__package__, connection.execute("PRAGMA user_version").fetchone()[0], name)
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'responses'").fetchall():
        raise SettingsError(f"The {name} is not a database of Outlive.")


def shrink(path: str) -> tuple[int, int]:
    """Rewrite a file that no server is using without its free pages. Returns its bytes before and after."""
    with contextlib.closing(DatabaseFile(path)):
        before = Path(path).stat().st_size
        try:
            with contextlib.closing(_open(path)) as connection:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                find_migrations(__package__, version, f"database {path}")
                connection.execute("PRAGMA temp_store = FILE")  # it may be larger than the memory
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("VACUUM")  # and from now on `SqliteDatabase.shrink` works on it
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise SettingsError(f"The database {path} was not shrunk: {error}.") from error
        return before, Path(path).stat().st_size


def _migrate(connection: sqlite3.Connection, path: str) -> int:
    """Bring the schema up to date. Returns its version before."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for number, text in find_migrations(__package__, version, f"database {path}"):
        connection.executescript(f"BEGIN IMMEDIATE; {text}; PRAGMA user_version = {number}; COMMIT;")
    return version
