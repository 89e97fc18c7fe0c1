"""The journal and the history on SQLite: read and pack committed frames, and read the items of threads."""

import sqlite3
from collections.abc import Iterator

from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json
from outlive.ports.database import LoadedItems, Stored
from outlive.ports.journal import Batch
from outlive.ports.ledger import Position
from outlive.ports.refusals import response_not_found
from outlive.ports.storage import UNBOUNDED, Packed, Packing
from outlive.storage.packing import JOURNAL_FORMAT, PACKED, SHORT, Row, pack
from outlive.storage.rows import gather, read_each
from outlive.storage.sqlite import SQL, threads
from outlive.storage.sqlite.connection import SqliteDatabase

PACKED_RESPONSES = 50  # packed in one transaction, or fewer that have ...
PACKED_BYTES = 1024 * 1024  # ... so many bytes of frames
RELEASED_ROWS = 500  # deleted in one transaction


class SqliteJournal(Stored[SqliteDatabase]):
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        return await self._database.read("read", lambda db: _read(db, response_id, after, max_bytes))

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        return await self._database.read(
            "read", lambda db: read_each(after, lambda id_, number: _read(db, id_, number, max_bytes))
        )


class SqliteHistory(Stored[SqliteDatabase]):
    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        return await self._database.read("history", lambda db: threads.read_before(db, position, most))

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        return await self._database.load("find_outputs", item_ids, owner)

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        return await self._database.read(
            "locate", lambda db: threads.locate(db, owner, conversation, parent, locking=False).position
        )


def _read(db: sqlite3.Connection, response_id: str, after: int, max_bytes: int) -> Batch | None:
    db.execute("BEGIN")  # one snapshot: the journal may be packed between two statements
    try:
        row = db.execute(SQL["find_journal"], (response_id,)).fetchone()
        if row is None:
            raise response_not_found(response_id)
        key, ended, first_era, last_era, journal_format = row
        if journal_format > JOURNAL_FORMAT:
            found = f"has format {journal_format}, this version reads up to {JOURNAL_FORMAT}"
            raise StorageUnavailable("read", f"the journal of {response_id} {found}")
        rows = read_rows(db, key, range(first_era, last_era + 1), journal_format, after + 1)
        return gather(response_id, rows, ended, after, max_bytes)
    finally:
        db.execute("COMMIT")


def read_rows(db: sqlite3.Connection, key: int, eras: range, journal_format: int, wanted: int) -> Iterator[Row]:
    """Yield the rows of a journal, packed or not, from the one that holds the wanted number on."""
    if journal_format == PACKED:
        yield from db.execute(SQL["read_packs"], (key, wanted))
        return
    begin, first = eras.start, 0
    # Most readers want what is new, so the search begins at the end.
    for era in reversed(eras) if wanted > 0 else ():
        (found,) = db.execute(SQL["find_row"], (era, key, wanted)).fetchone()
        if found is not None:
            begin, first = era, found
            break
    for era in range(begin, eras.stop):
        yield from db.execute(SQL["read_events"], (era, key, first))


class SqlitePacking(Stored[SqliteDatabase], Packing):
    """Compresses in a reader's thread, and changes the file in short transactions.

    Rows of many responses lie side by side on each page, so the rows of packed journals are deleted in the order of
    their keys, and not response by response: each page is written once.
    """

    _released = 0  # key up to which rows were looked at

    async def pack(self, ended_before: float) -> Packed:
        def compress(db: sqlite3.Connection) -> tuple[dict[int, list[Row]], int]:
            """Return the blocks of some responses, and the size of their frames before."""
            blocks: dict[int, list[Row]] = {}
            before = 0
            for key, *eras in db.execute(SQL["find_unpacked"], (ended_before, PACKED_RESPONSES)).fetchall():
                blocks[key], size = pack(read_rows(db, key, range(eras[0], eras[1] + 1), SHORT, 0))
                before += size
                if before >= PACKED_BYTES:
                    break
            return blocks, before

        blocks, before = await self._database.read("read", compress)
        rows = [(key, *block) for key, of_response in blocks.items() for block in of_response]

        def work(db: sqlite3.Connection) -> None:
            db.executemany(SQL["mark_packed"], [(key,) for key in blocks])
            db.executemany(SQL["add_pack"], rows)

        if blocks:
            await self._database.write("pack", work, heavy=True)
        return Packed(len(blocks), before, sum(len(block) for _, _, _, block, _ in rows))

    async def release(self, ended_before: float) -> bool:
        ((last, packed, oldest),) = await self._database.fetch("find_releasable", self._released, RELEASED_ROWS)
        if packed:
            rows = (self._released, last)
            await self._database.write("release", lambda db: db.execute(SQL["release_events"], rows), heavy=True)
        # Later rows are newer, and belong to responses that are not packed yet.
        more = last is not None and oldest < ended_before
        self._released = last if more else 0
        return more
