"""Retention: hides what has expired, deletes it later, and erases what was deleted."""

import math
from collections.abc import Sequence
from typing import Any

from outlive.ports.database import Database, Transaction

# Of events erased in one transaction (some 10 µs each): on SQLite every running response waits for it.
MOST_ROWS = 500


class Retention:
    """Hides and deletes what has expired, and erases what was deleted, for the sweeper. Each method returns the number
    of things that it has done this to, at most `limit` of a kind."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.shrink, self.scrub = database.shrink, database.scrub

    async def expire(
        self,
        *,
        responses_before: float | None,
        conversations_before: float | None,
        at: float,
        limit: int,
        owner: str | None = None,
        but: Sequence[str] = (),
    ) -> int:
        """Hide what was last used before these times, as expired at `at`: of an owner and its end users, or of all
        owners but some."""
        found = []
        # Long reads, so before the transaction. Conversations first: locks are always taken in this order.
        for kind, before in (("conversations", conversations_before), ("responses", responses_before)):
            if before is not None:
                rows = await self._database.fetch(f"expire_{kind}", before, limit, owner, list(but))
                found.append((f"hide_{kind}", [key for (key,) in rows], before))
        if owner is None:
            rows = await self._database.fetch("expire_timed_responses", at, limit)
            found.append(("hide_responses", [key for (key,) in rows], at))

        async def work(db: Transaction) -> int:
            hidden = [row for name, keys, before in found for row in await db.fetch(name, keys, at, before)]
            await _mark_threads(db, "hide_items", hidden)
            return len(hidden)

        if not any(keys for _, keys, _ in found):
            return 0
        return await self._database.atomically("expire", work, heavy=True)

    async def restore(self, after: float, limit: int) -> int:
        """Show again what expired after this time."""

        async def work(db: Transaction) -> int:
            found = await _change_expired(db, "restore", after, math.inf, limit)
            threads = [thread for _, thread, _ in found]
            await db.lock("lock_threads", threads)
            await db.run_all("restore_items", [(thread,) for thread in threads])
            return len(found)

        return await self._database.atomically("restore", work, heavy=True)

    async def delete_expired(self, before: float, limit: int) -> int:
        """Delete what expired before this time."""

        async def work(db: Transaction) -> int:
            found = await _change_expired(db, "delete", 0.0, before, limit)
            await _mark_threads(db, "make_hole", found)
            return len(found)

        return await self._database.atomically("delete expired", work, heavy=True)

    async def erase(self, limit: int) -> int:
        """Erase the bytes of some deleted things that no unfinished run needs. Returns 0 when nothing is left."""

        async def work(db: Transaction) -> int:
            return await _erase_responses(db, limit) or await _erase_conversations(db, limit)

        return await self._database.atomically("erase", work, heavy=True)

    async def forget_keys(self, before: float) -> None:
        """Erase Idempotency-Keys and records of unanswered creates that are older, tickets that expired before, and
        webhook deliveries that were given up six days before."""

        async def work(db: Transaction) -> None:
            for name in ("erase_old_keys", "erase_old_unanswered", "erase_old_tickets", "erase_old_deliveries"):
                await db.fetch(name, before)

        await self._database.atomically("forget keys", work, heavy=True)


async def _change_expired(db: Transaction, verb: str, first: float, last: float, limit: int) -> list[Any]:
    """Restore or delete what expired between these times. Returns the keys, with the positions of their items."""
    changed = []
    for kind in ("conversation", "response"):
        rows = await db.fetch(f"find_expired_{kind}s", first, last, limit)
        await db.run_all(f"{verb}_{kind}", [(key,) for key, _, _ in rows])
        changed += rows
    return changed


async def _mark_threads(db: Transaction, name: str, rows: list[Any]) -> None:
    """Mark the threads of some rows from the first item of each on."""
    await db.lock("lock_threads", [thread for _, thread, _ in rows])
    await db.run_all(name, [(first, thread) for _, thread, first in rows])


async def _find_idle(db: Transaction, name: str, limit: int) -> list[Any]:
    """Find deleted things whose thread families (a thread with all its forks) have nothing running, and lock those, so
    that nothing begins to run there before this transaction ends."""
    rows = await db.fetch(name, limit)
    roots = sorted({row[3] for row in rows})
    await db.lock("lock_threads", roots)
    busy = {root for (root,) in await db.fetch("busy_families", roots)}
    return [row for row in rows if row[3] not in busy]


async def _erase_responses(db: Transaction, limit: int) -> int:
    """Erase some responses, long journals from their beginning on. Returns the number that was begun."""
    left, begun = MOST_ROWS, 0
    for key, response_id, thread, _, first, last, kept in await _find_idle(db, "erasable_responses", limit):
        begun += 1
        left -= len(await db.fetch("erase_events", key, left))
        if left <= 0:  # the next transaction erases what is left of it
            break
        await db.fetch("erase_packs", key)
        await db.fetch("erase_keys", response_id)
        await db.fetch("erase_unanswered", key)
        await db.fetch("erase_response", key)
        if not kept:
            await db.erase_items("erase_response_items", key, thread, first, last)
            await _erase_thread(db, thread)
    return begun


async def _erase_conversations(db: Transaction, limit: int) -> int:
    rows = await _find_idle(db, "erasable_conversations", limit)
    for key, conversation_id, thread, _ in rows:
        await db.erase_items("erase_loose_items", thread)
        await db.fetch("erase_keys", conversation_id)
        await db.fetch("erase_conversation", key)
        await _erase_thread(db, thread)
    return len(rows)


async def _erase_thread(db: Transaction, thread: int | None) -> None:
    """Erase a thread that nothing needs, and then the threads that were kept for its sake alone."""
    while thread is not None:
        rows = await db.fetch("erase_thread", thread)
        thread = rows[0][0] if rows else None
