"""Conversations on Postgres: changes through their own endpoints, each with the conversation's row locked."""

from __future__ import annotations

import secrets
from typing import Any

from outlive.core.errors import ConversationLocked
from outlive.core.events import Json
from outlive.ports.ledger import Idempotency
from outlive.storage.postgres import staging
from outlive.storage.postgres.connection import SQL, Connection, PostgresPort, as_text, ids_of, lock_key
from outlive.storage.refusals import item_not_found, match_key
from outlive.storage.rows import ConversationRow, decode_items, encode, to_conversation


class PostgresConversations(PostgresPort):
    async def create(
        self, owner: str, conversation: Json, items: list[Json], at: float, key: Idempotency | None, large: bool = False
    ) -> str:
        async def work(db: Connection) -> str:
            target = await _find_by_key(db, owner, "conversation", key)
            if target is not None and await db.fetchrow(SQL["find_conversation"], target, owner) is not None:
                return target
            thread = await db.fetchval(SQL["add_thread"], len(items), at)
            metadata = encode(conversation["metadata"])
            await db.execute(SQL["add_conversation"], conversation["id"], owner, at, thread, metadata)
            await _add_items(db, thread, 0, items, large)
            await _save_key(db, owner, "conversation", key, conversation["id"], at)
            return str(conversation["id"])

        async def find(db: Connection) -> str | None:
            found: str | None = await db.fetchval(SQL["has_conversation"], conversation["id"])
            return found

        return await self._database.transact_once("create conversation", work, find)

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        async def work(db: Connection) -> Json:
            found = await _lock(db, owner, conversation_id)
            await db.execute(SQL["update_conversation"], encode(metadata), found.key)
            return found.to_json() | {"metadata": metadata}

        return await self._database.transact("update conversation", work)

    async def delete(self, owner: str, conversation_id: str) -> None:
        async def work(db: Connection) -> None:
            found = await _lock(db, owner, conversation_id)
            await db.execute(SQL["delete_conversations"], [found.key])
            await db.execute(SQL["make_holes"], [found.thread], [0])

        await self._database.transact("delete conversation", work)

    async def add_items(
        self,
        owner: str,
        conversation_id: str,
        items: list[Json],
        at: float,
        key: Idempotency | None,
        large: bool = False,
    ) -> list[Json]:
        async def work(db: Connection) -> Any:
            kind = f"items of {conversation_id}"
            found = await _lock(db, owner, conversation_id)
            thread = found.thread
            target = await _find_by_key(db, owner, kind, key)
            if target is not None:  # a repeat is answered before the lock is looked at (D17)
                return await db.fetch(SQL["read_named"], thread, target.split(","))
            if found.running is not None:
                raise ConversationLocked(conversation_id, found.running)
            ids, head = ids_of(items), await db.fetchval(SQL["find_head"], thread)
            there = {row[0] for row in await db.fetch(SQL["find_repeats"], thread, head, ids)}
            new = [item for item, item_id in zip(items, ids, strict=True) if item_id not in there]
            await _add_items(db, thread, head, new, large)
            await db.execute(SQL["move_head"], head + len(new), thread)
            await db.execute(SQL["use_conversation"], at, conversation_id)
            await _save_key(db, owner, kind, key, ",".join(ids), at)
            return await db.fetch(SQL["read_named"], thread, ids)

        async def find(db: Connection) -> Any:
            rows = await db.fetch(SQL["read_named_in"], as_text(conversation_id), ids_of(items))
            return rows if len(rows) == len(items) else None

        return await decode_items(await self._database.transact_once("add items", work, find))

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        async def work(db: Connection) -> Json:
            found = await _lock(db, owner, conversation_id)
            if found.running is not None:
                raise ConversationLocked(conversation_id, found.running)
            if await db.execute(SQL["drop_item"], found.thread, as_text(item_id)) == "DELETE 0":
                raise item_not_found(item_id)
            return found.to_json()

        return await self._database.transact("delete item", work)


async def _lock(db: Connection, owner: str, conversation_id: str) -> ConversationRow:
    """Lock a conversation, then read it."""
    await db.execute(SQL["lock_conversation"], as_text(conversation_id), owner)
    row = await db.fetchrow(SQL["find_conversation"], as_text(conversation_id), owner)
    return to_conversation(row, conversation_id)


async def _add_items(db: Connection, thread: int, head: int, items: list[Json], large: bool) -> None:
    ids = ids_of(items)
    if not items:
        return
    if large:
        staging_id = secrets.token_hex(16)
        await staging.write(db, staging_id, items)
        await db.execute(SQL["move_staged_items"], staging_id, ids, list(range(1, len(items) + 1)), thread, head)
    else:
        await db.execute(SQL["add_items"], thread, head, ids, [encode(item) for item in items])


async def _find_by_key(db: Connection, owner: str, kind: str, key: Idempotency | None) -> str | None:
    if key is None:
        return None
    # Another node may be about to use the same key.
    await db.execute(SQL["lock"], lock_key(kind, owner, key.key))
    return match_key(await db.fetchrow(SQL["find_key"], owner, as_text(kind), as_text(key.key)), key)


async def _save_key(db: Connection, owner: str, kind: str, key: Idempotency | None, target: str, at: float) -> None:
    if key is not None:
        await db.execute(SQL["save_key"], owner, as_text(kind), as_text(key.key), key.digest, target, at)
