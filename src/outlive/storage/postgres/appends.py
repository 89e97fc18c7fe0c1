"""Appends on Postgres: the new events of all running responses in one statement, also after a lost connection."""

from typing import Any

import asyncpg

from outlive.core.errors import Behind
from outlive.ports.ledger import AppendResult, AppendResults, Entry
from outlive.storage.postgres.connection import Connection, PostgresDatabase
from outlive.storage.postgres.schema import SQL
from outlive.storage.rows import to_rows

Row = tuple[int, int, int, int, float, bytes]  # response, fence, first, count, at, frames


class Appends:
    def __init__(self, database: PostgresDatabase, worker: str | None) -> None:
        self._database = database
        self._worker = worker
        # The responses whose journals were seen to be complete since a connection was last lost.
        self._generation = 0
        self._seen: set[int] = set()

    async def write(self, entries: list[Entry]) -> AppendResults:
        behind: dict[int, Behind] = {}
        if self._database.generation:
            behind = await self._find_behind(entries)
        written = [entry for entry in entries if entry.lease.key not in behind]
        rows = [(e.lease.key, e.lease.fence, *row[:2], e.at, row[2]) for e in written for row in to_rows(e)]
        stale = await self._write_rows(rows) if rows else set()
        return [
            behind.get(entry.lease.key)
            or (AppendResult.STALE if (entry.lease.key, entry.lease.fence) in stale else AppendResult.WRITTEN)
            for entry in entries
        ]

    async def _write_rows(self, rows: list[Row]) -> set[tuple[int, int]]:
        """Append rows. Returns the stale leases among theirs (key, fence)."""
        columns: list[Any] = [*map(list, zip(*rows, strict=True)), self._worker]
        sql = SQL["append_events"]
        try:
            numbers = await self._database.write("append", lambda db: db.fetchval(sql, *columns), hot=True)
        except asyncpg.UniqueViolationError:
            # An append that seemed to have failed was committed after all. These are the same events, and perhaps more:
            # they replace it.
            return await self._database.transact("append", lambda db: _replace(db, rows, self._worker))
        return {rows[number - 1][:2] for number in numbers or ()}

    async def _find_behind(self, entries: list[Entry]) -> dict[int, Behind]:
        """Find the journals that a failover has shortened: a promoted standby may lack the last commits."""
        generation = self._database.generation
        if generation != self._generation:
            self._generation = generation
            self._seen.clear()
        unseen = [entry for entry in entries if entry.lease.key not in self._seen]
        if not unseen:
            return {}
        keys, ids = [entry.lease.key for entry in unseen], [entry.lease.response_id for entry in unseen]
        rows = await self._database.write("append", lambda db: db.fetch(SQL["find_journal_ends"], keys, ids), hot=True)
        ends: dict[int, int] = {row[0]: row[1] for row in rows}
        behind = {}
        for entry in unseen:
            last = ends.get(entry.lease.key)
            if last is not None and last >= entry.first - 1:
                self._seen.add(entry.lease.key)
            else:
                behind[entry.lease.key] = Behind(last if last is not None else -1)
        return behind

    def forget(self, key: int) -> None:
        """Drop the state of a response that has ended."""
        self._seen.discard(key)


async def _replace(db: Connection, rows: list[Row], worker: str | None) -> set[tuple[int, int]]:
    held = {tuple(row) for row in await db.fetch(SQL["hold_leases"], [row[0] for row in rows], worker)}
    good = [row for row in rows if row[:2] in held]
    if good:
        columns: list[list[Any]] = list(map(list, zip(*good, strict=True)))
        await db.execute(SQL["drop_events"], columns[0], columns[2])
        await db.execute(SQL["append_events"], *columns, worker)
    return {row[:2] for row in rows if row[:2] not in held}
