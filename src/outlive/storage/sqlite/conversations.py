"""Conversations on SQLite: changes through their own endpoints."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable

from outlive.core.errors import ConversationLocked
from outlive.core.events import Json
from outlive.ports.ledger import Idempotency, Position
from outlive.storage.refusals import item_not_found, match_key
from outlive.storage.rows import ConversationRow, encode, to_conversation
from outlive.storage.sqlite import SQL, staging, threads
from outlive.storage.sqlite.connection import SqlitePort
from outlive.storage.sqlite.staging import StagedItems
from outlive.storage.sqlite.writer import T


class SqliteConversations(SqlitePort):
    async def create(
        self, owner: str, conversation: Json, items: list[Json], at: float, key: Idempotency | None, large: bool = False
    ) -> str:
        def work(db: sqlite3.Connection, staged: StagedItems | None) -> str:
            target = _find_by_key(db, owner, "conversation", key)
            if target is not None and db.execute(SQL["find_conversation"], (target, owner)).fetchone() is not None:
                return target
            thread = int(db.execute(SQL["add_thread"], (None, None, None, len(items), at)).lastrowid or 0)
            metadata = encode(conversation["metadata"])
            db.execute(SQL["add_conversation"], (conversation["id"], owner, at, at, thread, metadata))
            threads.add_items(db, Position(thread, 0), items, staged=staged)
            _save_key(db, owner, "conversation", key, conversation["id"], at)
            return str(conversation["id"])

        return await self._write("create conversation", work, items if large else [])

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        def work(db: sqlite3.Connection) -> Json:
            found = _find(db, owner, conversation_id)
            db.execute(SQL["update_conversation"], (encode(metadata), found.key))
            return found.to_json() | {"metadata": metadata}

        return await self._database.write("update conversation", work)

    async def delete(self, owner: str, conversation_id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            found = _find(db, owner, conversation_id)
            db.execute(SQL["delete_conversation"], (found.key,))
            db.execute(SQL["make_hole"], (0, found.thread))

        await self._database.write("delete conversation", work)

    async def add_items(
        self,
        owner: str,
        conversation_id: str,
        items: list[Json],
        at: float,
        key: Idempotency | None,
        large: bool = False,
    ) -> list[Json]:
        def work(db: sqlite3.Connection, staged: StagedItems | None) -> list[Json]:
            kind = f"items of {conversation_id}"
            thread = _find(db, owner, conversation_id).thread
            target = _find_by_key(db, owner, kind, key)
            if target is not None:  # a repeat is answered before the lock is looked at (D17)
                return _read_items(db, thread, target.split(","))
            _find_unlocked(db, owner, conversation_id)
            head = db.execute(SQL["find_thread"], (thread,)).fetchone()[3]
            new = threads.without_repeats(db, items, Position(thread, head))
            threads.add_items(db, Position(thread, head), new, staged=staged)
            db.execute(SQL["move_head"], (head + len(new), thread))
            db.execute(SQL["use_conversation"], (at, conversation_id))
            ids = [item["id"] for item in items]
            _save_key(db, owner, kind, key, ",".join(ids), at)
            return _read_items(db, thread, ids)

        return await self._write("add items", work, items if large else [])

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        def work(db: sqlite3.Connection) -> Json:
            found = _find_unlocked(db, owner, conversation_id)
            row = db.execute(SQL["read_item"], (found.thread, item_id)).fetchone()
            if row is None:
                raise item_not_found(item_id)
            staging.wipe(db, row[0])
            db.execute(SQL["drop_item"], (found.thread, item_id))
            return found.to_json()

        return await self._database.write("delete item", work)

    async def _write(
        self, name: str, work: Callable[[sqlite3.Connection, StagedItems | None], T], large: list[Json]
    ) -> T:
        if not large:
            return await self._database.write(name, lambda db: work(db, None))
        return await self._database.write_staged(name, work, secrets.token_hex(16), large)


def _find(db: sqlite3.Connection, owner: str, conversation_id: str) -> ConversationRow:
    row = db.execute(SQL["find_conversation"], (conversation_id, owner)).fetchone()
    return to_conversation(row, conversation_id)


def _find_unlocked(db: sqlite3.Connection, owner: str, conversation_id: str) -> ConversationRow:
    found = _find(db, owner, conversation_id)
    if found.running is not None:
        raise ConversationLocked(conversation_id, found.running)
    return found


def _read_items(db: sqlite3.Connection, thread: int, ids: list[str]) -> list[Json]:
    rows = [db.execute(SQL["read_item"], (thread, item_id)).fetchone() for item_id in ids]
    return staging.load_all(db, [row for row in rows if row is not None])


def _find_by_key(db: sqlite3.Connection, owner: str, kind: str, key: Idempotency | None) -> str | None:
    if key is None:
        return None
    return match_key(db.execute(SQL["find_key"], (owner, kind, key.key)).fetchone(), key)


def _save_key(db: sqlite3.Connection, owner: str, kind: str, key: Idempotency | None, target: str, at: float) -> None:
    if key is not None:
        db.execute(SQL["save_key"], (owner, kind, key.key, key.digest, target, at))
