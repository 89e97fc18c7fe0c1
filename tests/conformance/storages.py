"""The adapters under test: opens each database, and inspects it from outside its ports."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from outlive.core.requests.create import CreateResponse
from outlive.engine.ephemeral import MemoryJournal, MemoryLedger
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.database import Statements
from outlive.ports.journal import Journal
from outlive.ports.ledger import Admission, Lease, Ledger, Position, Quota, RunLedger
from outlive.ports.retention import Retention
from outlive.ports.storage import History, Packing
from outlive.storage.packing import lengthen
from outlive.storage.postgres import connection as postgres
from outlive.storage.postgres.journal import PostgresHistory, PostgresJournal, PostgresPacking
from outlive.storage.postgres.ledger import PostgresLedger
from outlive.storage.postgres.schema import SQL
from outlive.storage.sqlite import threads
from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.storage.sqlite.journal import SqliteHistory, SqliteJournal, SqlitePacking
from outlive.storage.sqlite.ledger import SqliteLedger


class Inspector(Protocol):
    """Shows a suite what no port shows of a database."""

    async def rows(self) -> dict[str, int]:
        """Count the rows of each table."""
        ...

    async def contains(self, text: str) -> bool:
        """Return True if any column of any row holds this text."""
        ...

    async def history_ranges(self, position: Position) -> int:
        """Count the indexed ranges of items that a history is read from, and check that nothing else is read."""
        ...

    async def work_of(self, act: Callable[[], Awaitable[object]]) -> int:
        """Count the work of a write, in the database's own steps."""
        ...

    async def update_statistics(self) -> None:
        """Count the tables for the planner, as the database's own maintenance does from time to time."""
        ...

    async def set_alive(self, worker: str, alive: bool) -> bool:
        """Set a worker's heartbeat as valid, or as expired long ago. False: this database has no heartbeats."""
        ...


class Storage(msgspec.Struct, frozen=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    database: Statements
    packing: Packing
    inspector: Inspector


class RunStorage(msgspec.Struct, frozen=True):
    """The part of a storage that a running response uses; memory has no more."""

    ledger: RunLedger
    journal: Journal
    begin: Callable[[str, bytes, int], Awaitable[Lease]]


Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Storage]]
RunOpener: TypeAlias = Callable[[], AbstractAsyncContextManager[RunStorage]]


# -- SQLite


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[Storage]:
    database = SqliteDatabase(str(path))
    try:
        yield Storage(
            SqliteLedger(database),
            SqliteJournal(database),
            SqliteHistory(database),
            Catalog(database),
            Conversations(database),
            Retention(database),
            database,
            SqlitePacking(database),
            SqliteInspector(database),
        )
    finally:
        await database.close()


class SqliteInspector:
    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def rows(self) -> dict[str, int]:
        def work(db: sqlite3.Connection) -> dict[str, int]:
            return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _tables(db)}

        return await self._database.read("count", work)

    async def contains(self, text: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            needle = text.encode()
            values = (value for name in _tables(db) for row in db.execute(f"SELECT * FROM {name}") for value in row)
            return any(
                needle in (lengthen(value) if isinstance(value, bytes) else str(value).encode()) for value in values
            )

        return await self._database.read("look", work)

    async def history_ranges(self, position: Position) -> int:
        def work(db: sqlite3.Connection) -> int:
            seen: list[str] = []
            db.set_trace_callback(seen.append)
            try:
                threads.read_before(db, position)
            finally:
                db.set_trace_callback(None)
            reads = [statement for statement in seen if "FROM items" in statement]
            assert len(seen) == 1 + len(reads)  # the first finds the segments
            for row in (row for read in reads for row in db.execute(f"EXPLAIN QUERY PLAN {read}")):
                assert row[3].startswith("SEARCH items USING") and "position<" in row[3]
            return len(reads)

        return await self._database.read("trace", work)

    async def work_of(self, act: Callable[[], Awaitable[object]]) -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        await self._database.write("watch", lambda db: db.set_progress_handler(count, 1))
        await act()
        await self._database.write("watch", lambda db: db.set_progress_handler(None, 0))
        return steps

    async def update_statistics(self) -> None:
        """Do nothing: this database plans without statistics."""

    async def set_alive(self, worker: str, alive: bool) -> bool:
        return False


def _tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in rows]


# -- Postgres


@asynccontextmanager
async def open_postgres(url: str, quota: Quota | None = None) -> AsyncIterator[Storage]:
    database = await postgres.PostgresDatabase.open(url)
    try:
        yield Storage(
            PostgresLedger(database, None, quota),
            PostgresJournal(database),
            PostgresHistory(database),
            Catalog(database),
            Conversations(database),
            Retention(database),
            database,
            PostgresPacking(database),
            PostgresInspector(database),
        )
    finally:
        await database.close()


class PostgresInspector:
    def __init__(self, database: postgres.PostgresDatabase) -> None:
        self.database = database

    async def rows(self) -> dict[str, int]:
        async def work(db: postgres.Connection) -> dict[str, int]:
            return {name: await db.fetchval(f"SELECT count(*) FROM {name}") for name in await _names(db)}

        return await self.database.read("count", work)

    async def contains(self, text: str) -> bool:
        async def work(db: postgres.Connection) -> bool:
            needle = text.encode()
            for name in await _names(db):
                values = (value for row in await db.fetch(f"SELECT * FROM {name}") for value in row)
                if any(
                    needle in (lengthen(value) if isinstance(value, bytes) else str(value).encode()) for value in values
                ):
                    return True
            return False

        return await self.database.read("look", work)

    async def history_ranges(self, position: Position) -> int:
        async def work(db: postgres.Connection) -> int:
            plan = await db.fetchval(
                "EXPLAIN (ANALYZE, FORMAT JSON) " + SQL["read_history"], position.thread, position.first
            )
            (node,) = [node for node in _nodes(json.loads(plan)[0]["Plan"]) if node.get("Relation Name") == "items"]
            conditions = " ".join(
                part.get("Index Cond", "") for part in _nodes(node)
            )  # a bitmap has it one level below
            assert "thread = " in conditions and '"position" < ' in conditions
            return int(node["Actual Loops"])

        return await self.database.read("explain", work)

    async def work_of(self, act: Callable[[], Awaitable[object]]) -> int:
        async def count(db: postgres.Connection) -> int:
            tables = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
            entries = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
            return int(await db.fetchval(tables)) + int(await db.fetchval(entries))

        await self.flush_counts()
        before = await self.database.read("count", count)
        await act()
        await self.flush_counts()
        return await self.database.read("count", count) - before

    async def update_statistics(self) -> None:
        await self.database.write("analyze", lambda db: db.execute("ANALYZE"))

    async def set_alive(self, worker: str, alive: bool) -> bool:
        sql = """
            INSERT INTO workers (name, started_at, expires_at)
            VALUES ($1, clock_timestamp(), clock_timestamp() + make_interval(secs => $2))
            ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at
        """
        await self.database.write("beat", lambda db: db.execute(sql, worker, 3600.0 if alive else -1.0))
        return True

    async def flush_counts(self) -> None:
        """Make every connection report its counts now: it would report them later by itself."""
        gate = asyncio.Event()

        async def work(db: postgres.Connection) -> None:
            await gate.wait()
            await db.execute("SELECT pg_stat_force_next_flush()")
            await db.execute("SELECT 1")

        tasks = [asyncio.create_task(self.database.write("flush", work)) for _ in range(postgres.WRITERS)]
        tasks += [asyncio.create_task(self.database.write("flush", work, hot=True)) for _ in range(postgres.HOT)]
        tasks += [asyncio.create_task(self.database.read("flush", work)) for _ in range(postgres.READERS)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)


async def _names(db: postgres.Connection) -> list[str]:
    rows = await db.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'outlive' AND tablename <> 'schema'")
    return [row[0] for row in rows]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


@asynccontextmanager
async def open_run(opened: AbstractAsyncContextManager[Storage]) -> AsyncIterator[RunStorage]:
    async with opened as storage:

        async def begin(response_id: str, frames: bytes, count: int) -> Lease:
            admission = Admission(
                response_id=response_id,
                owner="ann",
                at=1.0,
                request=CreateResponse(model="m", input=[]),
                status="in_progress",
                frames=frames,
                count=count,
                worker="w",
            )
            admitted = await storage.ledger.admit(admission)
            assert admitted.lease is not None
            return admitted.lease

        yield RunStorage(storage.ledger, storage.journal, begin)


# -- memory


@asynccontextmanager
async def open_run_memory() -> AsyncIterator[RunStorage]:
    journal = MemoryJournal()
    ledger = MemoryLedger(journal)

    async def begin(response_id: str, frames: bytes, count: int) -> Lease:
        return ledger.admit(response_id, frames, count)

    yield RunStorage(ledger, journal, begin)
