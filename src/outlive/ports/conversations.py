"""Conversations: changes through their own endpoints."""

from typing import Any

from outlive.core.errors import Conflict, ConversationLocked
from outlive.core.events import Json
from outlive.ports.catalog import ConversationRow, find_conversation
from outlive.ports.database import Database, Stored, Transaction, decode_items, encode, lock_key
from outlive.ports.ledger import Idempotency
from outlive.ports.refusals import item_not_found


class Conversations(Stored[Database]):
    """Changes conversations; each method is one transaction."""

    async def create(
        self, owner: str, conversation: Json, items: list[Json], at: float, key: Idempotency | None, large: bool = False
    ) -> str:
        """Store a new conversation. Returns its id, or that of an earlier one with the same Idempotency-Key. `large`
        items are too large for one uninterrupted write."""
        conversation_id = str(conversation["id"])

        async def work(db: Transaction) -> str:
            target = await _find_by_key(db, owner, "conversation", key)
            if target is not None and await db.fetch("find_conversation", target, owner):
                return target
            ((thread,),) = await db.fetch("start_thread", len(items), at)
            metadata = encode(conversation["metadata"])
            await db.fetch("add_conversation", conversation_id, owner, at, thread, metadata)
            await db.add_items(thread, 0, items)
            if key is not None:
                await db.fetch("save_key", owner, "conversation", key.key, key.digest, conversation_id, at)
            return conversation_id

        async def find(db: Transaction) -> str | None:
            return conversation_id if await db.fetch("has_conversation", conversation_id) else None

        return await self._database.atomically("create conversation", work, find=find, large=items if large else None)

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        async def work(db: Transaction) -> Json:
            found = await _find(db, owner, conversation_id)
            await db.fetch("update_conversation", encode(metadata), found.key)
            return found.to_json() | {"metadata": metadata}

        return await self._database.atomically("update conversation", work)

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Delete a conversation. A response that runs in it still ends, but its turn is not added."""

        async def work(db: Transaction) -> None:
            found = await _find(db, owner, conversation_id)
            await db.fetch("delete_conversation", found.key)
            await db.fetch("make_hole", 0, found.thread)

        await self._database.atomically("delete conversation", work)

    async def add_items(
        self,
        owner: str,
        conversation_id: str,
        items: list[Json],
        at: float,
        key: Idempotency | None,
        large: bool = False,
    ) -> list[Json]:
        """Append items, without those whose ids are there already. Raises ConversationLocked."""
        kind, ids = f"items of {conversation_id}", [item["id"] for item in items]

        async def work(db: Transaction) -> list[Any]:
            found = await _find(db, owner, conversation_id)
            target = await _find_by_key(db, owner, kind, key)
            if target is not None:  # a repeat is answered before the lock is looked at (D17)
                return await db.read_bodies("read_named", found.thread, target.split(","))
            if found.running is not None:
                raise ConversationLocked(conversation_id, found.running)
            ((head,),) = await db.fetch("find_head", found.thread)
            there = {row[0] for row in await db.fetch("find_repeats", found.thread, ids)}
            new = [item for n, item in enumerate(items) if n not in there]
            await db.add_items(found.thread, head, new)
            await db.fetch("move_head", head + len(new), found.thread)
            await db.fetch("use_conversation", at, conversation_id)
            if key is not None:
                await db.fetch("save_key", owner, kind, key.key, key.digest, ",".join(ids), at)
            return await db.read_bodies("read_named", found.thread, ids)

        async def find(db: Transaction) -> list[Any] | None:
            rows = await db.fetch("read_named_in", conversation_id, ids)
            return rows if len(rows) == len(items) else None

        bodies = await self._database.atomically("add items", work, find=find, large=items if large else None)
        return await decode_items(bodies)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Delete an item. Returns the conversation. Raises ConversationLocked."""

        async def work(db: Transaction) -> Json:
            found = await _find(db, owner, conversation_id)
            if found.running is not None:
                raise ConversationLocked(conversation_id, found.running)
            if not await db.drop_item(found.thread, item_id):
                raise item_not_found(item_id)
            return found.to_json()

        return await self._database.atomically("delete item", work)


async def _find(db: Transaction, owner: str, conversation_id: str) -> ConversationRow:
    """Find a conversation, and lock it: its changes are made one after the other."""
    await db.lock("hold_conversation", conversation_id, owner)
    return await find_conversation(db, owner, conversation_id)


async def _find_by_key(db: Transaction, owner: str, kind: str, key: Idempotency | None) -> str | None:
    if key is None:
        return None
    # Another node may be about to use the same key.
    await db.lock("lock", lock_key(kind, owner, key.key))
    rows = await db.fetch("find_key", owner, kind, key.key)
    if rows and rows[0][0] != key.digest:
        raise Conflict(param="Idempotency-Key")
    return str(rows[0][1]) if rows else None
