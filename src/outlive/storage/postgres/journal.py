"""The journal on Postgres: reading committed frames back."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from outlive.core.errors import NotFound
from outlive.core.events import split_frames
from outlive.ports.journal import Batch
from outlive.storage.postgres.connection import Database, as_text
from outlive.storage.postgres.threads import SQL

# Clients may ask for what comes after any number; no journal has this many events.
MOST = (1 << 31) - 1

Rows = Iterable[tuple[bool | None, int | None, int, bytes]]  # ended, first, count, frames


class PostgresJournal:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        arguments = (as_text(response_id), min(after + 1, MOST), max_bytes)
        rows: Any = await self._database.read("read", lambda db: db.fetch(SQL["read_journal"], *arguments))
        found, batch = _gather(rows, after)
        if not found:
            raise NotFound(f"Response with id '{response_id}' not found.")
        return batch

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        ids, wanted = list(map(as_text, after)), [min(number + 1, MOST) for number in after.values()]
        rows: Any = await self._database.read("read", lambda db: db.fetch(SQL["read_journals"], ids, wanted, max_bytes))
        read: dict[str, Batch | None] = {}
        names = list(after)
        for number, group in groupby(rows, key=itemgetter(0)):
            response_id = names[number]
            found, batch = _gather((row[1:] for row in map(tuple, group)), after[response_id])
            if batch is not None or not found:
                read[response_id] = batch
        return read


def _gather(rows: Rows, after: int) -> tuple[bool, Batch | None]:
    """Whether there is such a journal, and what is new in it; an empty batch when it has ended."""
    parts: list[bytes] = []
    last, reached, is_over = after, -1, False
    for ended, first, count, frames in rows:
        is_over = bool(ended)
        if first is None:
            continue
        reached = first + count - 1
        if reached <= after:
            continue
        if first > last + 1:
            return False, None  # it was deleted, and is being erased from its beginning on
        if first <= after:
            # The cursor stands within this row.
            frames = b"".join(split_frames(frames)[after + 1 - first :])
        parts.append(frames)
        last = reached
    if reached < 0:
        return False, None  # there is none, or it was erased a moment ago
    return True, Batch(after + 1, last, b"".join(parts)) if parts or is_over else None
