"""Changes of conversations through their own endpoints, each method one transaction."""

from __future__ import annotations

from typing import Protocol

from outlive.core.events import Json
from outlive.ports.ledger import Idempotency


class Conversations(Protocol):
    async def create(
        self, owner: str, conversation: Json, items: list[Json], at: float, key: Idempotency | None, large: bool = False
    ) -> str:
        """Store a new conversation. Returns its id, or that of an earlier one with the same Idempotency-Key.

        `large`: the items are too large for one uninterrupted write.
        """
        ...

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json: ...

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Delete a conversation. A response that runs in it still ends, but its turn is not added."""
        ...

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
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Delete an item. Returns the conversation. Raises ConversationLocked."""
        ...
