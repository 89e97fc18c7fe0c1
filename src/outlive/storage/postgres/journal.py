"""The journal and the history on Postgres: read and pack committed frames, and read the items of threads."""

import asyncio
from itertools import groupby
from operator import itemgetter
from typing import Any

from outlive.core.events import Json
from outlive.ports.database import MANY_BYTES, LoadedItems, Stored
from outlive.ports.journal import Batch
from outlive.ports.ledger import Position
from outlive.ports.refusals import refuse
from outlive.ports.storage import UNBOUNDED, Packed, Packing
from outlive.storage.packing import JOURNAL_FORMAT, PACKED, pack
from outlive.storage.postgres.connection import Connection, PostgresDatabase, as_text
from outlive.storage.postgres.schema import SQL
from outlive.storage.rows import gather, read_each

# Clients may ask for what comes after any number; no journal has this many events.
MOST = (1 << 31) - 1
PACKED_RESPONSES = 20  # packed in one transaction, or fewer that have ...
PACKED_BYTES = 1024 * 1024  # ... so many bytes of frames
PACKED_ROWS = 500  # read at a time


class PostgresJournal(Stored[PostgresDatabase]):
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        arguments = (as_text(response_id), min(after + 1, MOST), max_bytes, JOURNAL_FORMAT)
        rows = await self._database.read("read", lambda db: db.fetch(SQL["read_journal"], *arguments))
        if sum(len(row["frames"] or b"") for row in rows) > MANY_BYTES:  # a long event, perhaps packed: not on the loop
            return await asyncio.to_thread(_gather, response_id, rows, after, max_bytes)
        return _gather(response_id, rows, after, max_bytes)

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        ids, wanted = list(map(as_text, after)), [min(number + 1, MOST) for number in after.values()]
        arguments = (ids, wanted, max_bytes, JOURNAL_FORMAT)
        rows = await self._database.read("read", lambda db: db.fetch(SQL["read_journals"], *arguments))
        names = list(after)
        found = {names[number]: list(group) for number, group in groupby(rows, key=itemgetter(5))}
        return read_each(after, lambda id_, number: _gather(id_, found[id_], number, max_bytes))


class PostgresHistory(Stored[PostgresDatabase]):
    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        loaded = await self._database.load_some("read_history", position.thread, position.first, most=most)
        return LoadedItems(loaded.items[::-1], loaded.whole)

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        return await self._database.load("find_outputs", item_ids, owner)

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        async def work(db: Connection) -> Position | None:
            name = "locate_after" if conversation is None else "locate_in_conversation"
            row = await db.fetchrow(SQL[name], owner, as_text(parent if conversation is None else conversation))
            if row["refusal"] is not None:
                raise refuse(row["refusal"], row["detail"], conversation=conversation, parent=parent)
            if row["thread"] is not None:
                return Position(row["thread"], row["first"])
            return Position(row["parent"], row["fork"])

        return None if conversation is parent is None else await self._database.read("locate", work)


def _gather(response_id: str, rows: list[Any], after: int, max_bytes: int) -> Batch | None:
    # A row without frames shows only whether the response has ended, or that there is none.
    ended = bool(rows and rows[0][0])
    return gather(response_id, (row[1:5] for row in rows if row[1] is not None), ended, after, max_bytes)


class PostgresPacking(Stored[PostgresDatabase], Packing):
    """Packs on any number of nodes at once, each journal in the transaction that deletes its rows."""

    async def pack(self, ended_before: float) -> Packed:
        async def work(db: Connection) -> Packed:
            responses = before = after = 0
            for row in await db.fetch(SQL["find_unpacked"], ended_before, PACKED, PACKED_RESPONSES):
                key, first = row["key"], 0
                while rows := await db.fetch(SQL["read_flushes"], key, first, PACKED_ROWS):
                    # In a thread, for the other responses of this node must not wait for it.
                    blocks, size = await asyncio.to_thread(pack, rows)
                    await db.executemany(SQL["add_pack"], [(key, *block) for block in blocks])
                    before, after = before + size, after + sum(len(block) for _, _, block, _ in blocks)
                    first = rows[-1][0] + 1
                await db.execute(SQL["release_events"], key)
                await db.execute(SQL["mark_packed"], key)
                responses += 1
                if before >= PACKED_BYTES:
                    break
            return Packed(responses, before, after)

        return await self._database.transact("pack", work)
