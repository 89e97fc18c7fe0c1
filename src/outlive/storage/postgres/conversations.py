"""Changing conversations on Postgres, through their own endpoints. Whoever changes one holds its row."""

from __future__ import annotations

import secrets
from typing import Any

from outlive.core.errors import Conflict, ConversationLocked
from outlive.core.events import Json
from outlive.ports.ledger import Idempotency
from outlive.storage.postgres import staging
from outlive.storage.postgres.catalog import as_conversation, find_conversation, item_not_found
from outlive.storage.postgres.connection import Connection, Database, as_text
from outlive.storage.postgres.locks import lock_of
from outlive.storage.postgres.threads import SQL, encode, ids_of, load_all


class PostgresConversations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self,
        owner: str,
        conversation: Json,
        items: list[Json],
        at: float,
        idempotency: Idempotency | None,
        large: bool = False,
    ) -> str:
        async def work(db: Connection) -> str:
            target = await _find_by_key(db, owner, "conversation", idempotency)
            if target is not None and await db.fetchrow(SQL["find_conversation"], target, owner) is not None:
                return target
            thread = await db.fetchval(SQL["add_thread"], len(items), at)
            metadata = encode(conversation["metadata"])
            await db.execute(SQL["add_conversation"], conversation["id"], owner, at, thread, metadata)
            await _add_items(db, thread, 0, items, large)
            await _save_key(db, owner, "conversation", idempotency, conversation["id"], at)
            return str(conversation["id"])

        async def find(db: Connection) -> str | None:
            found: str | None = await db.fetchval(SQL["has_conversation"], conversation["id"])
            return found

        return await self._database.transact_surely("create conversation", work, find)

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        async def work(db: Connection) -> Json:
            row = await _lock(db, owner, conversation_id)
            await db.execute(SQL["update_conversation"], encode(metadata), row["key"])
            return as_conversation(row) | {"metadata": metadata}

        return await self._database.transact("update conversation", work)

    async def delete(self, owner: str, conversation_id: str) -> None:
        async def work(db: Connection) -> None:
            row = await _lock(db, owner, conversation_id)
            await db.execute(SQL["hide_conversations"], [row["key"]])
            await db.execute(SQL["make_holes"], [row["thread"]], [0])

        await self._database.transact("delete conversation", work)

    async def add_items(
        self,
        owner: str,
        conversation_id: str,
        items: list[Json],
        at: float,
        idempotency: Idempotency | None,
        large: bool = False,
    ) -> list[Json]:
        async def work(db: Connection) -> Any:
            kind = f"items of {conversation_id}"
            row = await _lock(db, owner, conversation_id)
            thread = row["thread"]
            target = await _find_by_key(db, owner, kind, idempotency)
            if target is not None:  # a repeat is answered before the lock is looked at (D17)
                return await db.fetch(SQL["read_named"], thread, target.split(","))
            if row["running"] is not None:
                raise ConversationLocked(conversation_id, row["running"])
            ids, head = ids_of(items), await db.fetchval(SQL["find_head"], thread)
            there = {found[0] for found in await db.fetch(SQL["find_repeats"], thread, head, ids)}
            new = [item for item, item_id in zip(items, ids, strict=True) if item_id not in there]
            await _add_items(db, thread, head, new, large)
            await db.execute(SQL["move_head"], head + len(new), thread)
            await db.execute(SQL["use_conversation"], at, conversation_id)
            await _save_key(db, owner, kind, idempotency, ",".join(ids), at)
            return await db.fetch(SQL["read_named"], thread, ids)

        async def find(db: Connection) -> Any:
            rows = await db.fetch(SQL["read_named_in"], as_text(conversation_id), ids_of(items))
            return rows if len(rows) == len(items) else None

        return await load_all(await self._database.transact_surely("add items", work, find))

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        async def work(db: Connection) -> Json:
            row = await _lock(db, owner, conversation_id)
            if row["running"] is not None:
                raise ConversationLocked(conversation_id, row["running"])
            if await db.execute(SQL["drop_item"], row["thread"], as_text(item_id)) == "DELETE 0":
                raise item_not_found(item_id)
            return as_conversation(row)

        return await self._database.transact("delete item", work)


async def _lock(db: Connection, owner: str, conversation_id: str) -> Any:
    """The conversation as it is once it is ours to change."""
    await db.execute(SQL["lock_conversation"], as_text(conversation_id), owner)
    return await find_conversation(db, owner, conversation_id)


async def _add_items(db: Connection, thread: int, head: int, items: list[Json], large: bool) -> None:
    ids = ids_of(items)
    if not items:
        return
    if large:
        holder = secrets.token_hex(16)
        await staging.put(db, holder, items)
        await db.execute(SQL["unstash"], holder, ids, list(range(1, len(items) + 1)), thread, head)
    else:
        await db.execute(SQL["add_items"], thread, head, ids, [encode(item) for item in items])


async def _find_by_key(db: Connection, owner: str, kind: str, idempotency: Idempotency | None) -> str | None:
    if idempotency is None:
        return None
    # Another node may be about to use the same key.
    await db.execute(SQL["lock_owner"], lock_of(kind, owner, idempotency.key))
    row = await db.fetchrow(SQL["find_key"], owner, as_text(kind), as_text(idempotency.key))
    if row is None:
        return None
    if row[0] != idempotency.digest:
        raise Conflict(param="Idempotency-Key")
    return str(row[1])


async def _save_key(
    db: Connection, owner: str, kind: str, idempotency: Idempotency | None, target: str, at: float
) -> None:
    if idempotency is not None:
        key = as_text(idempotency.key)
        await db.execute(SQL["save_key"], owner, as_text(kind), key, idempotency.digest, target, at)
