"""Retention: hides what has expired, deletes it later, and erases what was deleted."""

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outlive.ports.database import Database, Stored, Transaction

# Seconds after which a transaction that erases is committed (which takes as long again): on SQLite, running responses
# wait for it. And rows that one statement erases, each of up to 64 KB.
STEP_SECONDS = 0.005
STEP_ROWS = 20


class Retention(Stored[Database]):
    """Hides and deletes what has expired, and erases what was deleted, for the sweeper. With a `limit`, a method
    does so to as many things of a kind at most, and returns their number."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.shrink, self.scrub = database.shrink, database.scrub
        # Of a conversation that is partly erased, its thread and the position up to which it is.
        self._reached: dict[int, int] = {}

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
            threads = [thread for _, thread, _ in await _change_expired(db, "restore", after, math.inf, limit)]
            await db.lock("lock_threads", threads)
            await db.run_all("restore_items", [(thread,) for thread in threads])
            return len(threads)

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

        async def work(db: Transaction) -> tuple[int, dict[int, int]]:
            ends_at = time.monotonic() + STEP_SECONDS
            if begun := await _erase_responses(db, limit, ends_at):
                return begun, self._reached
            return await _erase_conversations(db, limit, ends_at, self._reached)

        if await self._database.erase_staged():
            return 1
        begun, self._reached = await self._database.atomically("erase", work, heavy=True)
        return begun

    async def forget_keys(self, before: float) -> bool:
        """Erase some Idempotency-Keys and records of unanswered creates that are older, tickets that expired before,
        and webhook deliveries that were given up six days before. Returns False when nothing is left."""

        async def work(db: Transaction) -> bool:
            ends_at = time.monotonic() + STEP_SECONDS
            for name in ("erase_old_keys", "erase_old_unanswered", "erase_old_tickets", "erase_old_deliveries"):
                if not await _erase_rows(db.fetch, ends_at, name, before):
                    return True
            return False

        return await self._database.atomically("forget keys", work, heavy=True)


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


async def _erase_rows(erase: Callable[..., Awaitable[list[Any]]], ends_at: float, name: str, *values: Any) -> bool:
    """Erase rows, few with each statement. Returns False if the time ends before: the next transaction goes on."""
    while len(await erase(name, *values, STEP_ROWS)) == STEP_ROWS:
        if time.monotonic() >= ends_at:
            return False
    return True


async def _erase_responses(db: Transaction, limit: int, ends_at: float) -> int:
    """Erase some responses, long ones in several transactions. Returns the number that was begun."""
    begun = 0
    for key, response_id, thread, _, first, last in await _find_idle(db, "erasable_responses", limit):
        if begun and time.monotonic() >= ends_at:
            break
        begun += 1
        own, kept = (key, thread, first, last), await db.fetch("is_kept", key)
        if not (
            await _erase_rows(db.fetch, ends_at, "erase_events", key)
            and await _erase_rows(db.fetch, ends_at, "erase_packs", key)
            and (kept or await _erase_rows(db.erase_items, ends_at, "erase_response_items", *own))
        ):
            break
        await db.fetch("erase_keys", response_id)
        await db.fetch("erase_unanswered", key)
        await db.fetch("erase_response", key)
        if not kept:
            await _erase_thread(db, thread)
    return begun


async def _erase_conversations(
    db: Transaction, limit: int, ends_at: float, reached: dict[int, int]
) -> tuple[int, dict[int, int]]:
    """Erase some conversations, long ones in several transactions: each goes on where the one before stopped, for items
    that remain must not be looked at again and again. Returns the number that was begun, and where it stopped."""
    begun = 0
    for key, conversation_id, thread, _ in await _find_idle(db, "erasable_conversations", limit):
        begun += 1
        position = reached.get(thread, 0)
        while len(rows := await db.erase_items("erase_loose_items", thread, position, STEP_ROWS)) == STEP_ROWS:
            position = max(row[1] for row in rows) + 1
            if time.monotonic() >= ends_at:
                return begun, {thread: position}
        await db.fetch("erase_keys", conversation_id)
        await db.fetch("erase_conversation", key)
        await _erase_thread(db, thread)
        if time.monotonic() >= ends_at:
            break
    return begun, {}


async def _erase_thread(db: Transaction, thread: int | None) -> None:
    """Erase a thread that nothing needs, and then the threads that were kept for its sake alone."""
    while thread is not None:
        rows = await db.fetch("erase_thread", thread)
        thread = rows[0][0] if rows else None
