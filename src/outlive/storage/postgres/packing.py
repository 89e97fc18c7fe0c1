"""Packing on Postgres: on any number of nodes at once, each journal in the transaction that deletes its rows."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from outlive.ports.storage import Packed
from outlive.storage.packing import PACKED, Block, Flush, pack
from outlive.storage.postgres.connection import SQL, Connection, PostgresPort

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
        flushes = [Flush(*row) for row in rows]
        # In a thread, for the other responses of this node must not wait for it.
        blocks: list[Block] = await asyncio.to_thread(partial(list, pack(flushes)))
        columns = zip(*map(msgspec.structs.astuple, blocks), strict=True)
        await db.execute(SQL["add_packs"], response, *map(list, columns))
        before += sum(len(flush.frames) for flush in flushes)
        after += sum(len(block.data) for block in blocks)
        first = flushes[-1].first + 1
    await db.execute(SQL["release_events"], response)
    await db.execute(SQL["mark_packed"], response)
    return before, after
