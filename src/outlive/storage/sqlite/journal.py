"""The journal on SQLite: reading committed frames back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from outlive.core.errors import NotFound
from outlive.core.events import split_frames
from outlive.ports.journal import Batch
from outlive.storage.sqlite.connection import Database
from outlive.storage.sqlite.threads import SQL


class SqliteJournal:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        return await self._database.read("read", lambda db: _read(db, response_id, after, max_bytes))

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        return await self._database.read("read", lambda db: _read_many(db, after, max_bytes))


def _read_many(db: sqlite3.Connection, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
    found: dict[str, Batch | None] = {}
    for response_id, number in after.items():
        try:
            if (batch := _read(db, response_id, number, max_bytes)) is not None:
                found[response_id] = batch
        except NotFound:
            found[response_id] = None
    return found


def _read(db: sqlite3.Connection, response_id: str, after: int, max_bytes: int) -> Batch | None:
    row = db.execute(SQL["find_journal"], (response_id,)).fetchone()
    if row is None:
        raise _not_found(response_id)
    key, ended, *eras = row
    parts: list[bytes] = []
    first, last, size = after + 1, after, 0
    reached = -1  # how far the journal goes, as far as was looked
    for row_first, count, frames in _rows(db, key, range(eras[0], eras[1] + 1), first):
        reached = row_first + count - 1
        if reached <= after:
            continue
        if row_first > last + 1:
            raise _not_found(response_id)  # it was deleted, and is being erased from its beginning on
        if row_first <= after:
            # The cursor stands within this row.
            frames = b"".join(split_frames(frames)[first - row_first :])
        parts.append(frames)
        last, size = reached, size + len(frames)
        if size >= max_bytes:
            break
    if reached < 0:
        raise _not_found(response_id)  # erased a moment ago
    return Batch(first, last, b"".join(parts)) if parts or ended else None


def _rows(db: sqlite3.Connection, key: int, eras: range, wanted: int) -> Iterator[tuple[int, int, bytes]]:
    """The rows of a journal from the one that holds the wanted number on."""
    begin, first = eras.start, 0
    # Most readers want what is new, so the search begins at the end.
    for era in reversed(eras) if wanted > 0 else ():
        (found,) = db.execute(SQL["find_row"], (era, key, wanted)).fetchone()
        if found is not None:
            begin, first = era, found
            break
    for era in range(begin, eras.stop):
        yield from db.execute(SQL["read_events"], (era, key, first))


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.")
