"""The archive on Postgres: one connection, one snapshot, one transaction."""

from collections.abc import AsyncIterator
from typing import Any, Self

from outlive.storage.postgres.connection import as_text, connect
from outlive.storage.postgres.schema import SCHEMA
from outlive.storage.tables import TABLES, Row

ROWS = 200
KEYED = ("threads", "responses", "conversations", "webhook_deliveries")
_FLAGS = ("background", "hidden", "acts_for")


class PostgresArchive:
    """Reads or fills a database in one transaction. Made by `open`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> Self:
        # A copy may take long, and reads whole tables.
        settings = {"idle_in_transaction_session_timeout": "0", "lock_timeout": "0", "enable_seqscan": "on"}
        connection = await connect(url, settings, unlimited=True)
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        return cls(connection)

    async def count(self, table: str) -> int:
        return int(await self._connection.fetchval(f"SELECT count(*) FROM {table}"))

    async def nodes(self) -> int:
        """Count the nodes whose heartbeat is valid."""
        return int(await self._connection.fetchval("SELECT count(*) FROM workers WHERE expires_at > clock_timestamp()"))

    async def read(self, table: str) -> AsyncIterator[list[Row]]:
        columns, source = ", ".join(f"t.{name}" for name in TABLES[table]), f"{table} t"
        if table == "responses":
            columns = columns.replace("t.snapshot", "s.body")
            source = "responses t LEFT JOIN snapshots s ON s.response = t.key ORDER BY t.key"
        elif table == "events":
            source = "events t ORDER BY t.response, t.first"
        cursor = await self._connection.cursor(f"SELECT {columns} FROM {source}")
        while rows := await cursor.fetch(ROWS):
            yield [tuple(row) for row in rows]

    async def write(self, table: str, rows: list[Row]) -> None:
        columns = TABLES[table]
        for at, name in enumerate(columns):
            if name in _FLAGS:
                rows = [(*row[:at], bool(row[at]), *row[at + 1 :]) for row in rows]
        if table == "responses":
            ended = [(row[0], row[-1]) for row in rows if row[-1] is not None]
            await self._copy("snapshots", ("response", "body"), ended)
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        if table in ("items", "idempotency", "usage"):
            rows = [tuple(as_text(value) if isinstance(value, str) else value for value in row) for row in rows]
        if table == "secrets":
            await self._connection.execute("DELETE FROM secrets WHERE name = ANY ($1)", [row[0] for row in rows])
        await self._copy(table, columns, rows)

    async def _copy(self, table: str, columns: tuple[str, ...], rows: list[Row]) -> None:
        await self._connection.copy_records_to_table(table, schema_name=SCHEMA, columns=columns, records=rows)

    async def commit(self) -> None:
        for table in KEYED:
            # A key that was used once is never used again.
            last = f"(SELECT coalesce(max(key), 0) + 1 FROM {table})"
            await self._connection.execute(
                f"SELECT setval(pg_get_serial_sequence('{SCHEMA}.{table}', 'key'), {last}, false)"
            )
        await self._connection.execute("COMMIT")
        await self._connection.execute("ANALYZE")

    async def close(self) -> None:
        self._connection.terminate()
