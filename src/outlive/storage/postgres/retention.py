"""Retention on Postgres: hides what has expired, deletes it later, and erases what was deleted, on many nodes."""

from __future__ import annotations

import math
from typing import Any

from outlive.storage.postgres.connection import SQL, Connection, PostgresPort

# Of events erased in one transaction, so that none takes long.
MOST_ROWS = 500


class PostgresRetention(PostgresPort):
    async def expire(
        self, *, responses_before: float | None, conversations_before: float | None, at: float, limit: int
    ) -> int:
        async def work(db: Connection) -> int:
            found = []
            # Conversations first: locks are always taken in this order.
            for kind, before in (("conversations", conversations_before), ("responses", responses_before)):
                if before is not None:
                    rows = await db.fetch(SQL[f"expire_{kind}"], before, limit)
                    await db.execute(SQL[f"hide_{kind}"], [row["key"] for row in rows], at)
                    found += rows
            await _mark_threads(db, "hide_items", found)
            return len(found)

        return await self._database.transact("expire", work)

    async def restore(self, after: float, limit: int) -> int:
        async def work(db: Connection) -> int:
            found = await _change_expired(db, "restore", after, math.inf, limit)
            await db.execute(SQL["lock_threads"], [row["thread"] for row in found])
            await db.execute(SQL["restore_items"], [row["thread"] for row in found])
            return len(found)

        return await self._database.transact("restore", work)

    async def delete_expired(self, before: float, limit: int) -> int:
        async def work(db: Connection) -> int:
            found = await _change_expired(db, "delete", 0.0, before, limit)
            await _mark_threads(db, "make_holes", found)
            return len(found)

        return await self._database.transact("delete expired", work)

    async def erase(self, limit: int) -> int:
        erased = await self._database.transact("erase", lambda db: _erase_responses(db, limit))
        if erased:
            return erased
        return await self._database.transact("erase", lambda db: _erase_conversations(db, limit))

    async def forget_keys(self, before: float) -> None:
        for name in ("erase_old_keys", "erase_old_unanswered", "erase_old_tickets"):
            await self._database.change("forget keys", SQL[name], before)

    async def scrub(self) -> None:
        """Do nothing: erased rows lie in the database's files until it vacuums them by itself, and only its
        administrator can read them there."""


async def _change_expired(db: Connection, verb: str, first: float, last: float, limit: int) -> list[Any]:
    """Restore or delete what expired between these times. Returns the rows, with the positions of their items."""
    changed = []
    for kind in ("conversations", "responses"):
        rows = await db.fetch(SQL[f"find_expired_{kind}"], first, last, limit)
        await db.execute(SQL[f"{verb}_{kind}"], [row["key"] for row in rows])
        changed += rows
    return changed


async def _mark_threads(db: Connection, query: str, rows: list[Any]) -> None:
    """Mark the threads of some rows from the first item of each on."""
    if rows:
        threads = [row["thread"] for row in rows]
        await db.execute(SQL["lock_threads"], threads)
        await db.execute(SQL[query], threads, [row["first"] for row in rows])


async def _idle(db: Connection, rows: list[Any]) -> list[Any]:
    """Return the rows whose thread families (a thread with all its forks) have nothing running, and lock those, so that
    nothing begins to run there before this transaction ends."""
    roots = sorted({row["root"] for row in rows})
    await db.execute(SQL["lock_families"], roots)
    busy = {row[0] for row in await db.fetch(SQL["busy_families"], roots)}
    return [row for row in rows if row["root"] not in busy]


async def _erase_responses(db: Connection, limit: int) -> int:
    """Erase some responses, long journals from their beginning on. Returns the number that was begun."""
    rows = await db.fetch(SQL["erasable_responses"], limit)
    left = MOST_ROWS
    begun = 0
    for row in await _idle(db, rows):
        begun += 1
        gone = int((await db.execute(SQL["erase_events"], row["key"], left)).split()[1])
        left -= gone
        if left <= 0 and await db.fetchval(SQL["has_events"], row["key"]):
            break
        await db.execute(SQL["erase_packs"], row["key"])
        await db.execute(SQL["erase_keys"], row["id"])
        if not row["kept"]:
            span = (row["thread"], row["first"], row["last"])
            await db.execute(SQL["erase_response_items"], row["key"], *span)
        await db.execute(SQL["erase_response"], row["key"])
        if not row["kept"]:
            await _erase_thread(db, row["thread"])
        if left <= 0:
            break
    return begun


async def _erase_conversations(db: Connection, limit: int) -> int:
    rows = await _idle(db, await db.fetch(SQL["erasable_conversations"], limit))
    for row in rows:
        await db.execute(SQL["erase_loose_items"], row["thread"])
        await db.execute(SQL["erase_keys"], row["id"])
        await db.execute(SQL["erase_conversation"], row["key"])
        await _erase_thread(db, row["thread"])
    return len(rows)


async def _erase_thread(db: Connection, thread: int | None) -> None:
    """Erase a thread that nothing needs, and then the threads that were kept for its sake alone."""
    while thread is not None:
        thread = await db.fetchval(SQL["erase_thread"], thread)
