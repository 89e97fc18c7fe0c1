"""The adapters under test: for each database a way to open it, and to look at it from outside its ports."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from outlive.adapters.memory.journal import MemoryJournal
from outlive.adapters.memory.ledger import MemoryLedger
from outlive.adapters.sqlite import threads
from outlive.adapters.sqlite.catalog import SqliteCatalog
from outlive.adapters.sqlite.connection import Database
from outlive.adapters.sqlite.conversations import SqliteConversations
from outlive.adapters.sqlite.history import SqliteHistory
from outlive.adapters.sqlite.journal import SqliteJournal
from outlive.adapters.sqlite.keeper import SqliteKeeper
from outlive.adapters.sqlite.ledger import SqliteLedger
from outlive.core.requests import CreateResponse
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.history import History
from outlive.ports.journal import Journal
from outlive.ports.keeper import Keeper
from outlive.ports.ledger import Admission, Lease, Ledger, Place, RunLedger


class Inspector(Protocol):
    """What a suite must see of a database that no port shows."""

    async def rows(self) -> dict[str, int]:
        """How many rows each table holds."""
        ...

    async def contains(self, text: str) -> bool:
        """Whether any column of any row holds this text."""
        ...

    async def history_statements(self, place: Place) -> list[str]:
        """The statements that reading a history takes."""
        ...

    async def plans(self, statement: str) -> list[str]:
        """How the database would go about a statement."""
        ...

    async def work_of(self, act: Callable[[], Awaitable[object]]) -> int:
        """How much work, in the database's own steps, a write takes."""
        ...


class Home(msgspec.Struct, frozen=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    keeper: Keeper
    inspector: Inspector


class RunHome(msgspec.Struct, frozen=True):
    """The part of a home that a running response needs; memory has no more."""

    ledger: RunLedger
    journal: Journal
    begin: Callable[[str, bytes, int], Awaitable[Lease]]


Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Home]]
RunOpener: TypeAlias = Callable[[], AbstractAsyncContextManager[RunHome]]


# -- SQLite


@asynccontextmanager
async def open_sqlite(path: Path) -> AsyncIterator[Home]:
    database = Database(str(path))
    try:
        yield Home(
            SqliteLedger(database),
            SqliteJournal(database),
            SqliteHistory(database),
            SqliteCatalog(database),
            SqliteConversations(database),
            SqliteKeeper(database),
            SqliteInspector(database),
        )
    finally:
        await database.close()


class SqliteInspector:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self) -> dict[str, int]:
        def work(db: sqlite3.Connection) -> dict[str, int]:
            return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _tables(db)}

        return await self._database.read("count", work)

    async def contains(self, text: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            needle = text.encode()
            values = (value for name in _tables(db) for row in db.execute(f"SELECT * FROM {name}") for value in row)
            return any(needle in (value if isinstance(value, bytes) else str(value).encode()) for value in values)

        return await self._database.read("look", work)

    async def history_statements(self, place: Place) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            seen: list[str] = []
            db.set_trace_callback(seen.append)
            try:
                threads.read_before(db, place)
            finally:
                db.set_trace_callback(None)
            return seen

        return await self._database.read("trace", work)

    async def plans(self, statement: str) -> list[str]:
        def work(db: sqlite3.Connection) -> list[str]:
            return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]

        return await self._database.read("explain", work)

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


def _tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in rows]


@asynccontextmanager
async def open_run_sqlite(path: Path) -> AsyncIterator[RunHome]:
    async with open_sqlite(path) as home:

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
            admitted = await home.ledger.admit(admission)
            assert admitted.lease is not None
            return admitted.lease

        yield RunHome(home.ledger, home.journal, begin)


# -- memory


@asynccontextmanager
async def open_run_memory() -> AsyncIterator[RunHome]:
    journal = MemoryJournal()
    ledger = MemoryLedger(journal)

    async def begin(response_id: str, frames: bytes, count: int) -> Lease:
        return ledger.admit(response_id, frames, count)

    yield RunHome(ledger, journal, begin)
