"""The archive on SQLite: reads or fills a file from a single thread, while no server uses it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outlive.ports.archive import TABLES, Row
from outlive.storage.sqlite import staging

ROWS = 500
MANY_BYTES = 4 * 1024 * 1024
ERA_BITS = 12


class SqliteArchive:
    """Opens a file whose lock the caller holds."""

    def __init__(self, path: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlive-archive")
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._next_event = 1

    async def count(self, table: str) -> int:
        counted: int = await self._run(lambda: self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        return counted

    async def read(self, table: str) -> AsyncIterator[list[Row]]:
        rows = _read(self._db, table)
        while batch := await self._run(lambda: _take(rows)):
            yield batch

    async def write(self, table: str, rows: list[Row]) -> None:
        await self._run(lambda: self._write(table, rows))

    async def commit(self) -> None:
        await self._run(lambda: self._db.execute("COMMIT"))

    async def close(self) -> None:
        await self._run(self._db.close)
        self._thread.shutdown()

    async def _run(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _write(self, table: str, rows: list[Row]) -> None:
        db = self._db
        if not db.in_transaction:
            db.execute("BEGIN IMMEDIATE")
        columns = TABLES[table]
        if table == "responses":
            ended = columns.index("ended_at")
            eras = [(*row, 0, None if row[ended] is None else 0) for row in rows]
            _insert(db, table, (*columns, "era", "last_era"), eras)
        elif table == "leases":
            _insert(db, table, columns[:-1], [row[:-1] for row in rows])
            db.executemany("UPDATE responses SET request = ? WHERE key = ?", [(row[-1], row[0]) for row in rows])
        elif table == "events":
            self._write_events(rows)
        else:
            _insert(db, table, columns, rows, replace=table == "secrets")

    def _write_events(self, rows: list[Row]) -> None:
        """Write events, and into each response the eras that its events come to lie in."""
        spans: dict[int, tuple[bool, int, int]] = {}
        keyed = []
        for row in rows:
            key, self._next_event = self._next_event, self._next_event + 1
            keyed.append((key, *row))
            begins, first, _ = spans.get(row[0], (row[1] == 0, key, key))
            spans[row[0]] = (begins, first, key)
        _insert(self._db, "events", ("key", *TABLES["events"]), keyed)
        self._db.executemany(
            "UPDATE responses SET era = CASE WHEN ?1 THEN ?2 ELSE era END, "
            "last_era = CASE WHEN ended_at IS NULL THEN NULL ELSE ?3 END WHERE key = ?4",
            [
                (begins, first >> ERA_BITS, last >> ERA_BITS, response)
                for response, (begins, first, last) in spans.items()
            ],
        )


def _insert(
    db: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[Row], replace: bool = False
) -> None:
    verb = "INSERT OR REPLACE" if replace else "INSERT"
    values = ", ".join("?" * len(columns))
    db.executemany(f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)


def _read(db: sqlite3.Connection, table: str) -> Iterator[Row]:
    columns = ", ".join(TABLES[table])
    if table == "leases":
        columns = ", ".join(f"l.{name}" for name in TABLES[table][:-1])
        yield from db.execute(f"SELECT {columns}, r.request FROM leases l JOIN responses r ON r.key = l.response")
    elif table == "items":
        for thread, position, item_id, response, body in db.execute(f"SELECT {columns} FROM items"):
            yield thread, position, item_id, response, staging.load_raw(db, body)
    elif table == "events":
        # In the order in which they were written, which is that of their sequence numbers.
        yield from db.execute(f"SELECT {columns} FROM events ORDER BY key")
    else:
        yield from db.execute(f"SELECT {columns} FROM {table}")


def _take(rows: Iterator[Row]) -> list[Row]:
    """Take the next rows: ROWS of them, or about MANY_BYTES."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if len(batch) >= ROWS or size >= MANY_BYTES:
            break
    return batch
