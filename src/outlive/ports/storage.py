"""The ports of one database: histories, conversations, retention, heartbeats, and all of them together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec

from outlive.core.events import Json
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.journal import Journal
from outlive.ports.ledger import Idempotency, Ledger, Position

# A loop that has not ticked for so long hangs: another worker should take over what it runs.
HUNG_SECONDS = 30.0
UNBOUNDED = 1 << 40


class LoadedItems(NamedTuple):
    """Items that were read up to a number of bytes."""

    items: list[Json]
    whole: bool  # False: there are more bytes than were asked for


class History(Protocol):
    """Reads the items of a thread before a position, for a model's context."""

    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        """Read the items of all ended turns before a position, oldest first; one indexed range per fork. If they have
        more bytes than `most`, only the newest are read, up to the one with which they have."""

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        """Find those of these items that are output of an owner's response, oldest first."""

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        """Find the position of a response that will not be stored. Raises as an admission does, but takes no lock."""


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
    """Hides and deletes what has expired, and erases what was deleted, for the sweeper. Each returns the number of
    things that it has done this to, at most `limit` of a kind."""

    async def expire(
        self, *, responses_before: float | None, conversations_before: float | None, at: float, limit: int
    ) -> int:
        """Hide what was last used before these times, as expired at `at`."""

    async def restore(self, after: float, limit: int) -> int:
        """Show again what expired after this time."""

    async def delete_expired(self, before: float, limit: int) -> int:
        """Delete what expired before this time."""

    async def erase(self, limit: int) -> int:
        """Erase the bytes of some deleted things that no unfinished run needs. Returns 0 when nothing is left."""

    async def forget_keys(self, before: float) -> None:
        """Erase Idempotency-Keys and records of unanswered creates that are older, and tickets that expired before."""

    async def scrub(self) -> None:
        """Make sure that erased bytes are in no file any more."""


class Ticket(msgspec.Struct, frozen=True):
    """Read-only access to one response or conversation until a time."""

    id: str
    owner: str
    target: str  # the id of what it opens
    expires_at: float
    digest: bytes  # of its secret


class StoredTickets(Protocol):
    """Stores tickets; each method is one statement. Expired ones are erased by `Retention.forget_keys`."""

    async def add(self, ticket: Ticket) -> None: ...

    async def remove(self, owner: str, target: str, ticket_id: str) -> bool:
        """Remove a ticket. Returns False if the owner has none of that id for this target."""

    async def find(self, ticket_id: str) -> Ticket | None:
        """Find a ticket, whether or not it has expired."""

    async def find_valid(self, ticket_ids: list[str], at: float) -> set[str]:
        """Return those of these tickets that exist and expire after that time."""

    async def holds(self, ticket: Ticket, response_id: str) -> bool:
        """Return True if the ticket is for a conversation that this response belongs to."""


class Packed(NamedTuple):
    """Journals that were packed in one step, and the bytes of their frames and of the blocks."""

    responses: int = 0
    before: int = 0
    after: int = 0


class Packing(Protocol):
    """Compresses the journals of ended responses, in short steps. A replay gives the same bytes at any moment."""

    async def pack(self, ended_before: float) -> Packed:
        """Pack some journals of responses that ended before this time; none while a node cannot read them."""

    async def release(self, ended_before: float) -> bool:
        """Delete some rows of packed journals. False when this was the last of them."""


class Heartbeat(Protocol):
    """Beats for one worker, from a thread of its own, so that a busy loop does not lose its leases.

    The leases are the worker's own only while its last beat is valid: for the lease time, by the database's clock.
    While the storage is down, a beat is tried again.
    """

    async def start(self) -> None:
        """Return after the first beat: from then on the leases that this worker takes are its own."""

    def tick(self) -> None:
        """Show that the loop is alive. Without this for `HUNG_SECONDS` the beats stop until the next tick."""

    def is_beating(self) -> bool:
        """Return True if the last beat is valid, so that leases taken now are this worker's own. Costs nothing."""

    async def stop(self) -> None:
        """Withdraw the last beat: the worker is gone, and its leases are free for any worker at once."""


class NoHeartbeat:
    """The heartbeat of a database with a single server, whose lock on the file shows that it lives."""

    async def start(self) -> None:
        pass

    def tick(self) -> None:
        pass

    def is_beating(self) -> bool:
        return True

    async def stop(self) -> None:
        pass


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    tickets: StoredTickets
    packing: Packing
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # made once per database, and shared by its nodes
    shared: bool  # other nodes may use the same database
