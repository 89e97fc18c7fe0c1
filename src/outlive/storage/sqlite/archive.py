"""The archive on SQLite: reads or fills a file, while no server uses it."""

import sqlite3
from collections.abc import AsyncIterator, Iterator

from outlive.storage.sqlite import SQL, staging
from outlive.storage.tables import TABLES, Row

ROWS = 500
MANY_BYTES = 4 * 1024 * 1024
ERA_BITS = 12


class SqliteArchive:
    """Opens a file whose lock the caller holds. Nothing else runs meanwhile, so it may block."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._next_event = 1

    async def count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    async def read(self, table: str) -> AsyncIterator[list[Row]]:
        """Yield all rows: ROWS at a time, or about MANY_BYTES."""
        batch: list[Row] = []
        size = 0
        for row in _read(self._db, table):
            batch.append(row)
            size += sum(len(value) for value in row if isinstance(value, bytes))
            if len(batch) >= ROWS or size >= MANY_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    async def write(self, table: str, rows: list[Row]) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN IMMEDIATE")
        columns = TABLES[table]
        if table == "responses":
            ended = columns.index("ended_at")
            eras = [(*row, 0, None if row[ended] is None else 0) for row in rows]
            self._insert(table, (*columns, "era", "last_era"), eras)
        elif table == "leases":
            self._insert(table, columns[:-1], [row[:-1] for row in rows])
            self._db.executemany("UPDATE responses SET request = ? WHERE key = ?", [(row[-1], row[0]) for row in rows])
        elif table == "events":
            self._write_events(rows)
        else:
            self._insert(table, columns, rows)

    async def commit(self) -> None:
        self._db.execute("COMMIT")

    async def close(self) -> None:
        self._db.close()

    def _insert(self, table: str, columns: tuple[str, ...], rows: list[Row]) -> None:
        verb = "INSERT OR REPLACE" if table == "secrets" else "INSERT"
        values = ", ".join("?" * len(columns))
        self._db.executemany(f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({values})", rows)

    def _write_events(self, rows: list[Row]) -> None:
        """Write events, and into each response the eras that its events come to lie in."""
        keyed = [(key, *row) for key, row in enumerate(rows, self._next_event)]
        self._next_event += len(rows)
        spans: dict[int, tuple[bool, int, int]] = {}
        for key, response, number, *_ in keyed:
            begins, first, _ = spans.get(response, (number == 0, key, key))
            spans[response] = (begins, first, key)
        self._insert("events", ("key", *TABLES["events"]), keyed)
        eras = [(begins, first >> ERA_BITS, last >> ERA_BITS, key) for key, (begins, first, last) in spans.items()]
        self._db.executemany(SQL["set_eras"], eras)


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
