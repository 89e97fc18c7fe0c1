"""Retention on SQLite: hides what has expired, deletes it later, and leaves no byte of it in a file."""

from __future__ import annotations

import math
import sqlite3
from typing import Any

from outlive.storage.sqlite import SQL, staging
from outlive.storage.sqlite.connection import SqlitePort

# Of events erased in one transaction (some 10 µs each): every running response waits for it.
MOST_ROWS = 500


class SqliteRetention(SqlitePort):
    async def expire(
        self, *, responses_before: float | None, conversations_before: float | None, at: float, limit: int
    ) -> int:
        def work(db: sqlite3.Connection) -> int:
            found = []
            if responses_before is not None:
                found = db.execute(SQL["expire_responses"], (responses_before, limit)).fetchall()
                db.executemany(SQL["hide_response"], [(at, key) for key, _, _ in found])
            if conversations_before is not None:
                conversations = db.execute(SQL["expire_conversations"], (conversations_before, limit)).fetchall()
                db.executemany(SQL["hide_conversation"], [(at, key) for key, _, _ in conversations])
                found += conversations
            db.executemany(SQL["hide_items"], [(first, thread) for _, thread, first in found])
            return len(found)

        return await self._database.write("expire", work, heavy=True)

    async def restore(self, after: float, limit: int) -> int:
        def work(db: sqlite3.Connection) -> int:
            found = _change_expired(db, "restore", (after, math.inf, limit))
            db.executemany(SQL["restore_items"], [(thread,) for _, thread, _ in found])
            return len(found)

        return await self._database.write("restore", work, heavy=True)

    async def delete_expired(self, before: float, limit: int) -> int:
        def work(db: sqlite3.Connection) -> int:
            found = _change_expired(db, "delete", (0.0, before, limit))
            db.executemany(SQL["make_hole"], [(first, thread) for _, thread, first in found])
            return len(found)

        return await self._database.write("delete expired", work, heavy=True)

    async def erase(self, limit: int) -> int:
        def work(db: sqlite3.Connection) -> int:
            responses = db.execute(SQL["erasable_responses"], (limit,)).fetchall()
            if not _erase_responses(db, responses):
                return len(responses)
            conversations = db.execute(SQL["erasable_conversations"], (limit,)).fetchall()
            for key, conversation_id, thread in conversations:
                staging.erase(db, db.execute(SQL["find_staged_loose_items"], (thread,)).fetchall())
                db.execute(SQL["erase_loose_items"], (thread,))
                db.execute(SQL["erase_keys"], (conversation_id,))
                db.execute(SQL["erase_conversation"], (key,))
                _erase_thread(db, thread)
            return len(responses) + len(conversations)

        return await self._database.write("erase", work, heavy=True)

    async def forget_keys(self, before: float) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute(SQL["erase_old_keys"], (before,))
            db.execute(SQL["erase_old_unanswered"], (before,))
            db.execute(SQL["erase_old_tickets"], (before,))

        await self._database.write("forget keys", work, heavy=True)

    async def scrub(self) -> None:
        # Deleted content was overwritten with zeros in the pages; the log still holds the pages as they were.
        await self._database.checkpoint()


def _change_expired(db: sqlite3.Connection, verb: str, within: tuple[float, float, int]) -> list[tuple[int, int, int]]:
    """Restore or delete what expired within a time. Returns the keys, with the positions of their items."""
    changed = []
    for kind in ("response", "conversation"):
        found = db.execute(SQL[f"find_expired_{kind}s"], within).fetchall()
        db.executemany(SQL[f"{verb}_{kind}"], [(key,) for key, _, _ in found])
        changed += found
    return changed


def _erase_responses(db: sqlite3.Connection, responses: list[tuple[Any, ...]]) -> bool:
    """Erase responses, long journals from their beginning on. False when one transaction has erased enough."""
    left = MOST_ROWS
    for row in responses:
        events = _find_events(db, row[0], left + 1)
        db.executemany(SQL["erase_event"], events[:left])
        if len(events) > left:
            return False
        left -= len(events)
        db.execute(SQL["erase_packs"], row[:1])
        _erase_response(db, *row)
    return True


def _find_events(db: sqlite3.Connection, response: int, limit: int) -> list[tuple[int]]:
    """Find the keys of a journal's rows from its beginning on, at most `limit` of them."""
    first, last = db.execute(SQL["find_eras"], (response,)).fetchone()
    keys: list[tuple[int]] = []
    for era in range(first, last + 1):
        keys += db.execute(SQL["find_events"], (era, response, limit - len(keys))).fetchall()
        if len(keys) == limit:
            break
    return keys


def _erase_response(
    db: sqlite3.Connection, key: int, response_id: str, thread: int, first: int, last: int, in_conversation: int
) -> None:
    db.execute(SQL["erase_unanswered"], (key,))
    db.execute(SQL["erase_keys"], (response_id,))
    if not in_conversation:
        staging.erase(db, db.execute(SQL["find_staged_items"], (thread, first, last)).fetchall())
        db.execute(SQL["erase_response_items"], (key, thread, first, last))
        _erase_thread(db, thread)
    db.execute(SQL["erase_response"], (key,))


def _erase_thread(db: sqlite3.Connection, thread: int | None) -> None:
    """Erase a thread that nothing needs, and then the threads that were kept for its sake alone."""
    while thread is not None:
        row = db.execute(SQL["erase_thread"], (thread,)).fetchone()
        thread = row[0] if row else None
