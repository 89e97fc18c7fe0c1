"""Changing conversations through their own endpoints, each method one transaction."""

from __future__ import annotations

from typing import Protocol

from outlive.core.events import Json
from outlive.ports.ledger import Idempotency


class Conversations(Protocol):
    async def create(
        self,
        owner: str,
        conversation: Json,
        items: list[Json],
        at: float,
        idempotency: Idempotency | None,
        large: bool = False,
    ) -> str:
        """Store a new conversation; the id of the earlier one when the Idempotency-Key was used already.

        `large`: so much that it should not be written in one go.
        """
        ...

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json: ...

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Nobody finds it from now on; a response running in it still ends, its turn goes nowhere."""
        ...

    async def add_items(
        self,
        owner: str,
        conversation_id: str,
        items: list[Json],
        at: float,
        idempotency: Idempotency | None,
        large: bool = False,
    ) -> list[Json]:
        """Append items; one that is there already (by id) is left as it is. Raises ConversationLocked."""
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Returns the conversation. Raises ConversationLocked."""
        ...
