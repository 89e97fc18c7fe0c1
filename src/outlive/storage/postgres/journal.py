"""The journal on Postgres: reads committed frames."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

from outlive.ports.journal import Batch
from outlive.storage.postgres.connection import SQL, PostgresPort, as_text
from outlive.storage.rows import gather, read_each

# Clients may ask for what comes after any number; no journal has this many events.
MOST = (1 << 31) - 1


class PostgresJournal(PostgresPort):
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        arguments = (as_text(response_id), min(after + 1, MOST), max_bytes)
        rows = await self._database.read("read", lambda db: db.fetch(SQL["read_journal"], *arguments))
        return _gather(response_id, rows, after, max_bytes)

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        ids, wanted = list(map(as_text, after)), [min(number + 1, MOST) for number in after.values()]
        rows = await self._database.read("read", lambda db: db.fetch(SQL["read_journals"], ids, wanted, max_bytes))
        names = list(after)
        found = {names[number]: list(group) for number, group in groupby(rows, key=itemgetter(4))}
        return read_each(after, lambda id_, number: _gather(id_, found[id_], number, max_bytes))


def _gather(response_id: str, rows: list[Any], after: int, max_bytes: int) -> Batch | None:
    # A row without frames shows only whether the response has ended, or that there is none.
    ended = bool(rows and rows[0][0])
    return gather(response_id, (row[1:4] for row in rows if row[1] is not None), ended, after, max_bytes)
