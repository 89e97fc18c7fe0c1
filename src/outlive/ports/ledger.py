"""The write port: every change of a stored response, each method one transaction."""

import asyncio
from enum import Enum
from typing import Any, Protocol, TypeAlias

import msgspec

from outlive.core.endings import TerminalStatus
from outlive.core.errors import Behind, StaleFence
from outlive.core.events import Json
from outlive.core.owners import Policy, name_of
from outlive.core.requests.create import CreateResponse
from outlive.core.usage import UsageRecord
from outlive.ports.database import Transaction
from outlive.ports.refusals import response_not_found


class Lease(msgspec.Struct, frozen=True):
    """The right to write one response's journal, until another worker raises the fence."""

    response_id: str
    key: int  # the database's own key of the response
    fence: int
    short: bool = False  # every node can read compressed rows in this journal


class Position(msgspec.Struct, frozen=True):
    """A response's thread, and the index of its first input item there. Its history lies before that index."""

    thread: int
    first: int


class Idempotency(msgspec.Struct, frozen=True):
    key: str
    digest: bytes  # of the canonical body


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that accepting a response writes."""

    response_id: str
    owner: str
    at: float
    request: CreateResponse
    status: str
    frames: bytes
    count: int
    worker: str | None  # takes the lease at once; None: queued for any worker to claim
    idempotency: Idempotency | None = None
    size: int = 0  # bytes of a request with so much input that it should not be written in one go
    retry_digest: bytes | None = None  # lets an SDK's silent retry find this response (D17)
    sealed: bytes | None = None  # the secrets of its tools, stored until the lease is dropped

    @property
    def about(self) -> bytes:
        """The fields of the request that lists filter by."""
        return msgspec.json.encode({"model": self.request.model, "metadata": self.request.metadata})

    @property
    def expires_at(self) -> float | None:
        """The time at which it expires if it is not used until then; None: as the settings have it."""
        days = self.request.outlive.get("expires_after_days")
        return None if days is None else self.at + days * 86_400.0


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on running and queued responses over all nodes; 0 per owner: no limit of its own."""

    queued: int
    running_per_owner: int = 0
    queued_per_owner: int = 0
    policies: dict[str, Policy] = msgspec.field(default_factory=dict)  # of owners, by name; kept up to date

    def running_of(self, owner: str) -> int:
        policy = self.policies.get(name_of(owner)) if self.policies else None
        return self.running_per_owner if policy is None or policy.max_running is None else policy.max_running

    def queued_of(self, owner: str) -> int:
        policy = self.policies.get(name_of(owner)) if self.policies else None
        return self.queued_per_owner if policy is None or policy.max_waiting is None else policy.max_waiting


class Admitted(msgspec.Struct, frozen=True):
    """Result of an admission: the new response's position and lease, or the id of an earlier one to attach to."""

    position: Position | None = None
    lease: Lease | None = None
    attached: str | None = None
    history: list[Json] | None = None  # the items before it, where the admission has read them: if they are few


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a run that the next worker needs and the journal does not hold. Stored keys keep their first names."""

    # First sequence number of each resumption.
    resumed_at: list[int] = msgspec.field(default_factory=list, name="joints")
    upstream: str | None = None  # id of the upstream's own run, if it can be reattached to
    replay_from: int = msgspec.field(default=-1, name="border")  # last event before that run's output
    usage: Json | None = None  # of the finished steps of a tool loop
    paid: Json | None = None  # usage that upstreams have reported for all attempts so far, those that broke included
    steps: int = 0  # number of finished steps
    compaction: Json | None = None  # usage of the calls that compacted the context
    repeats: dict[str, int] = {}  # how often a tool call was repeated, by the call's item id
    # Calls beyond `max_tool_calls`, which only the model sees: the output index before which each stands, and its item.
    ignored: list[tuple[int, Json]] = []


NO_CHECKPOINT = Checkpoint()


class Memory(msgspec.Struct, frozen=True):
    """Context of a response that was not stored, kept by its connection so that it can be continued there (D4)."""

    items: list[Json]  # of the whole chain, oldest first, as far as it is in no storage
    position: Position | None = None  # where the stored history before them ends
    conversation: str | None = None  # whose history that is: a conversation's,
    parent: str | None = None  # or a stored response's


# Bytes of requests after which one claim takes no more.
CLAIM_BYTES = 1024 * 1024


class Claim(msgspec.Struct, frozen=True):
    """A response that a worker has just taken."""

    lease: Lease
    owner: str
    request: CreateResponse
    position: Position
    attempts: int
    checkpoint: Checkpoint
    background: bool
    size: int = 0  # bytes of the request, if it is large
    was_queued: bool = False  # no worker held it before; set by `take_over` only
    memory: Memory | None = None  # what it continues, when that is not stored
    sealed: bytes | None = None  # the secrets of its tools
    history: list[Json] | None = None  # the items before it, if the admission has read them


class Entry(msgspec.Struct, frozen=True):
    """Consecutive events of one response, to be appended under its lease."""

    lease: Lease
    first: int
    count: int
    at: float
    frames: bytes


class Closing(msgspec.Struct, frozen=True):
    """The last events of a response, with everything that must change together with them."""

    entry: Entry
    status: TerminalStatus
    snapshot: bytes
    turn: list[Json]
    keep_turn: bool  # False: a failed turn is taken out of its conversation again (D6)
    usage: UsageRecord | None = None


class AppendResult(Enum):
    """Result of appending one entry. In their place stands a Behind where the lease holds, but a gap would remain."""

    WRITTEN = "written"
    STALE = "stale"  # the lease is lost, and nothing was written


AppendResults: TypeAlias = list[AppendResult | Behind]


class RunLedger(Protocol):
    """The part of a ledger that a running response uses. A stale fence can write nothing."""

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        """Write all entries in one commit; an entry that is not WRITTEN leaves out its own rows only."""

    def close(self, closing: Closing) -> asyncio.Future[None]:
        """Write the last event, snapshot and turn; drop lease and conversation's lock. Raises StaleFence or Behind."""

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint that the next worker to run the response starts from."""


class Ledger(RunLedger, Protocol):
    """The one write port. Every method checks before it writes, so an error means that nothing was written."""

    _database: Any  # a Statements, of a narrower type in each adapter

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        """Accept a response, or return the id of an earlier one with the same Idempotency-Key.

        A ledger that several nodes share also enforces their common limits (`Quota`): raises MustWait when this owner
        has enough running already, and TooMany when too many are queued.
        """

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        """Take up to `limit` queued responses, foreground first, then oldest; counts an attempt for each. None is taken
        behind CLAIM_BYTES of requests.

        Where nodes share the ledger, takes no more of an owner's than may run on all nodes together (`Quota`).
        """

    async def take_over(self, response_id: str, worker: str) -> Claim | None:
        """Raise the fence of a response and take its lease from any worker. None if it has ended. Counts no attempt."""

    async def release_leases(self, leases: list[Lease]) -> None:
        """Return responses to the queue, taking back the attempt that was counted for each."""

    async def find_deleted(self, worker: str) -> list[str]:
        """Find deleted responses that have not ended, but wait or are run by this worker."""
        return [row[0] for row in await self._database.fetch("find_deleted", worker)]

    async def find_overdue(self, at: float, limit: int) -> list[str]:
        """Find some queued responses whose deadline is at that time or before it."""
        return [row[0] for row in await self._database.fetch("find_overdue", at, limit)]

    async def confirm_leases(self, worker: str, leases: list[Lease]) -> list[bool]:
        """Check which of these leases a worker still holds. One that was freed because the worker seemed dead, and was
        not claimed since, is given back to it."""

    async def free_dead_leases(self) -> int:
        """Queue the responses of dead workers for any worker to claim. Returns their number."""

    async def count_queued(self) -> dict[str, int]:
        """Count the queued responses by owner."""

    async def mark_answered(self, response_id: str) -> None:
        """Record that the creating connection has its whole answer: a silent retry must not find the response."""

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a finished response. Its bytes are erased later, by `Retention.erase`. Raises NotFound."""

        async def work(db: Transaction) -> None:
            rows = await db.fetch("find_deletable", response_id, owner)
            if not rows:
                raise response_not_found(response_id)
            key, thread, first, running = rows[0]
            if running:
                raise StaleFence("The response is running again.")
            await db.fetch("delete_response", key)
            await db.fetch("make_hole", first, thread)
            await db.fetch("drop_deliveries_of", response_id)

        await self._database.atomically("delete", work)
