"""The ports of one database: conversations, retention, and all of them together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from outlive.core.events import Json
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.heartbeat import Heartbeat
from outlive.ports.history import History
from outlive.ports.journal import Journal
from outlive.ports.ledger import Idempotency, Ledger


class Conversations(Protocol):
    """Changes conversations through their own endpoints; each method is one transaction."""

    async def create(
        self, owner: str, conversation: Json, items: list[Json], at: float, key: Idempotency | None, large: bool = False
    ) -> str:
        """Store a new conversation. Returns its id, or that of an earlier one with the same Idempotency-Key.

        `large`: the items are too large for one uninterrupted write.
        """

    async def update(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json: ...

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Delete a conversation. A response that runs in it still ends, but its turn is not added."""

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

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Delete an item. Returns the conversation. Raises ConversationLocked."""


class Retention(Protocol):
    """Deletes what has expired and erases what was deleted, for the sweeper."""

    async def expire(self, *, responses_before: float | None, conversations_before: float | None, limit: int) -> int:
        """Delete what was last used before these times. Returns the number of deleted things."""

    async def erase(self, limit: int) -> int:
        """Erase the bytes of some deleted things that no unfinished run needs. Returns 0 when nothing is left."""

    async def forget_keys(self, before: float) -> None:
        """Erase Idempotency-Keys and records of unanswered creates that are older."""

    async def scrub(self) -> None:
        """Make sure that erased bytes are in no file any more."""


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # made once per database, and shared by its nodes
    shared: bool  # other nodes may use the same database
