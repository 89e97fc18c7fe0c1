"""Packing on Postgres: on any number of nodes at once, each journal in the transaction that deletes its rows."""

import asyncio

from outlive.ports.storage import Packed
from outlive.storage.packing import PACKED, pack
from outlive.storage.postgres.connection import Connection, PostgresPort
from outlive.storage.postgres.schema import SQL

RESPONSES = 20  # packed in one transaction, or fewer that have ...
MANY_BYTES = 1024 * 1024  # ... so many bytes of frames
ROWS = 500  # read at a time


class PostgresPacking(PostgresPort):
    async def pack(self, ended_before: float) -> Packed:
        async def work(db: Connection) -> Packed:
            packed = Packed()
            for row in await db.fetch(SQL["find_unpacked"], ended_before, PACKED, RESPONSES):
                before, after = await _pack(db, row["key"])
                packed = Packed(packed.responses + 1, packed.before + before, packed.after + after)
                if packed.before >= MANY_BYTES:
                    break
            return packed

        return await self._database.transact("pack", work)

    async def release(self, ended_before: float) -> bool:
        """Do nothing: the rows go in the transaction that packs them."""
        return False


async def _pack(db: Connection, response: int) -> tuple[int, int]:
    """Pack one journal. Returns the bytes of its frames and of its blocks."""
    before = after = first = 0
    while rows := await db.fetch(SQL["read_flushes"], response, first, ROWS):
        # In a thread, for the other responses of this node must not wait for it.
        blocks, size = await asyncio.to_thread(pack, rows)
        await db.executemany(SQL["add_pack"], [(response, *block) for block in blocks])
        before += size
        after += sum(len(block) for _, _, block, _ in blocks)
        first = rows[-1][0] + 1
    await db.execute(SQL["release_events"], response)
    await db.execute(SQL["mark_packed"], response)
    return before, after
