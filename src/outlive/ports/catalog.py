"""Lookups: single responses and conversations, and pages of them."""

from typing import Protocol

import msgspec

from outlive.core.events import Json


class Record(msgspec.Struct, frozen=True):
    """The part of a stored response that readers need."""

    response_id: str
    status: str
    created_at: float
    snapshot: bytes | None  # the final object; None while it runs, and in lists where it is long
    owner: str = ""  # in lists


class RunRecord(msgspec.Struct, frozen=True):
    """The nodes that ran a response, and its extent."""

    created_at: float
    ended_at: float | None
    events: int | None  # None where only the node that runs it knows
    taken: list[tuple[float, str, int]]  # when, by which node, and 1 where it counted as an attempt
    node: str | None  # holds its lease
    attempts: int | None  # as the lease counts them
    resumed_at: list[int]  # so far; empty once it has ended


class Page(msgspec.Struct, frozen=True):
    """One page of a list, in the order asked for."""

    data: list[Json]
    has_more: bool


class Paging(msgspec.Struct, frozen=True):
    after: str | None = None
    limit: int = 20
    order: str = "desc"
    wide: bool = False  # a list for admins: of an owner and its end users, or of all owners where the name is empty


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a list, all of which hold for each of its elements."""

    statuses: list[str] = []  # any of these; none: all
    conversation: str | None = None
    model: str | None = None  # as the request named it
    metadata: dict[str, str] = {}
    created_after: int | None = None  # unix seconds; compared with `created_at` as it is shown
    created_before: int | None = None

    @property
    def scans(self) -> bool:
        """True if some of it is found in no index."""
        return bool(self.metadata) or {self.model, self.created_after, self.created_before} != {None}


NO_FILTERS = Filters()


class NodeState(msgspec.Struct, frozen=True):
    """One node of a database: its leases, and the seconds until its last heartbeat expires (negative: it is dead)."""

    name: str
    leases: int
    expires_in: float | None  # None: a single server has no heartbeat


class DatabaseState(msgspec.Struct, frozen=True):
    """The size of a database, its queue and its webhooks that wait, its nodes, and this node's connections to it."""

    size: int  # bytes
    queued: int
    oldest_queued_at: float | None  # unix seconds
    nodes: list[NodeState]
    connections: dict[str, tuple[int, int]]  # by pool: in use, and at most
    webhooks: int  # deliveries of which another attempt will be made
    oldest_webhook_at: float | None


class Catalog(Protocol):
    """Every method answers for one owner alone: things of another owner are NotFound."""

    async def response(self, owner: str, response_id: str) -> Record: ...

    async def status(self, owner: str, response_id: str) -> str | None:
        """Return the status of a response; None when it does not exist."""

    async def responses(self, owner: str, paging: Paging, filters: Filters) -> tuple[list[Record], bool]: ...

    async def find_owner(self, thing_id: str) -> str | None:
        """Return the owner of a response or conversation, for admins."""

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        """Return the places in the queue (1: the next to be taken) of those of these responses that are queued."""

    async def runs(self, response_ids: list[str]) -> dict[str, RunRecord]:
        """Return the nodes and the extent of those of these responses that exist."""

    async def measure(self) -> DatabaseState:
        """Return the size of the database and of the queue, and the nodes that use it."""

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page: ...

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        """Return the digest and the target that an Idempotency-Key was first used for."""

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        """Find responses to the same body whose creating connection has not had its answer, newest first."""

    async def conversation(self, owner: str, conversation_id: str) -> Json: ...

    async def conversations(self, owner: str, paging: Paging, filters: Filters = NO_FILTERS) -> Page:
        """List conversations by `metadata` and the time of their creation."""

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page: ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json: ...

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        """Find items by their ids in any response or conversation; ids of none are left out."""
