"""Packing on SQLite: compresses in a reader's thread, and changes the file in short transactions.

Rows of many responses lie side by side on each page, so the rows of packed journals are deleted in the order of their
keys, and not response by response: each page is written once.
"""

import sqlite3

from outlive.ports.storage import Packed
from outlive.storage.packing import SHORT, Row, pack
from outlive.storage.sqlite import SQL
from outlive.storage.sqlite.connection import SqlitePort
from outlive.storage.sqlite.journal import read_rows

RESPONSES = 50  # packed in one transaction, or fewer that have ...
MANY_BYTES = 1024 * 1024  # ... so many bytes of frames
ROWS = 500  # deleted in one transaction


class SqlitePacking(SqlitePort):
    _released = 0  # key up to which rows were looked at

    async def pack(self, ended_before: float) -> Packed:
        blocks, before = await self._database.read("read", lambda db: _pack_some(db, ended_before))
        rows = [(key, *block) for key, of_response in blocks.items() for block in of_response]

        def work(db: sqlite3.Connection) -> None:
            db.executemany(SQL["mark_packed"], [(key,) for key in blocks])
            db.executemany(SQL["add_pack"], rows)

        if blocks:
            await self._database.write("pack", work, heavy=True)
        return Packed(len(blocks), before, sum(len(block) for _, _, _, block, _ in rows))

    async def release(self, ended_before: float) -> bool:
        span = (self._released, ROWS)
        ((last, packed, oldest),) = await self._database.fetch("find_releasable", *span)
        if packed:
            await self._database.write(
                "release", lambda db: db.execute(SQL["release_events"], (span[0], last)), heavy=True
            )
        # Later rows are newer, and belong to responses that are not packed yet.
        more = last is not None and oldest < ended_before
        self._released = last if more else 0
        return more


def _pack_some(db: sqlite3.Connection, ended_before: float) -> tuple[dict[int, list[Row]], int]:
    """Pack the journals of some responses. Returns their blocks by response, and the size of their frames before."""
    blocks: dict[int, list[Row]] = {}
    before = 0
    for key, first_era, last_era in db.execute(SQL["find_unpacked"], (ended_before, RESPONSES)).fetchall():
        blocks[key], size = pack(read_rows(db, key, range(first_era, last_era + 1), SHORT, 0))
        before += size
        if before >= MANY_BYTES:
            break
    return blocks, before
