"""The write port: what may change a stored response, each method one transaction."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

import msgspec

from outlive.core.endings import TerminalStatus
from outlive.core.errors import Behind
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse


class Lease(msgspec.Struct, frozen=True):
    """The right to write one response's journal, until somebody raises the fence."""

    response_id: str
    key: int  # the database's own key of the response
    fence: int


class Position(msgspec.Struct, frozen=True):
    """Where a response's items lie: its thread, and the position of its first input item. History lies before it."""

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
    worker: str | None  # who takes the lease at once; None: anyone may claim it
    idempotency: Idempotency | None = None
    large: bool = False  # so much input that it should not be written in one go
    retry_digest: bytes | None = None  # lets an SDK's silent retry find this response (D17)
    sealed: bytes | None = None  # the secrets of its tools; kept with the lease, and gone with it


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What may run and wait on all nodes together; 0 per owner: no limit of its own."""

    waiting: int
    running_per_owner: int = 0
    waiting_per_owner: int = 0


class Admitted(msgspec.Struct, frozen=True):
    """What became of an admission: the new response's lease, or the id of the one that was there already."""

    place: Position | None = None
    lease: Lease | None = None
    attached: str | None = None


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a run that the next worker needs and the journal does not hold. Stored keys keep their first names."""

    resumed_at: list[int] = msgspec.field(
        default_factory=list, name="joints"
    )  # first sequence number of each resumption
    upstream: str | None = None  # id of the upstream's own run, if it can be reattached to
    replay_from: int = msgspec.field(default=-1, name="border")  # last event before that run's output
    usage: Json | None = None  # of the finished steps of a tool loop
    steps: int = 0  # number of finished steps
    compaction: Json | None = None  # usage of the calls that compacted the context
    repeats: dict[str, int] = {}  # how often a tool call was repeated, by the call's item id


NO_CHECKPOINT = Checkpoint()


class Memory(msgspec.Struct, frozen=True):
    """What a connection remembers of a response that was not stored, so that it can be continued there (D4)."""

    items: list[Json]  # of the whole chain, oldest first, as far as it is in no storage
    place: Position | None = None  # where the stored history before them ends
    conversation: str | None = None  # whose history that is: a conversation's,
    parent: str | None = None  # or a stored response's


class Claim(msgspec.Struct, frozen=True):
    """A response that a worker has just taken."""

    lease: Lease
    owner: str
    request: CreateResponse
    place: Position
    attempts: int
    notes: Checkpoint
    background: bool
    waited: bool = False  # nobody had it before; only of what was seized
    memory: Memory | None = None  # what it continues, when that is not stored
    sealed: bytes | None = None  # the secrets of its tools


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


# What became of an entry. True: written. False: its lease is stale. Behind: the lease stands, but there would be a gap.
Kept: TypeAlias = bool | Behind


class RunLedger(Protocol):
    """What a running response needs of a ledger. A stale fence can write nothing."""

    def append(self, entries: list[Entry]) -> asyncio.Future[list[Kept]]:
        """One commit for all of them; of each that is not True, the rows alone are dropped."""
        ...

    def close(self, closing: Closing) -> asyncio.Future[None]:
        """Terminal event, snapshot, turn, lease and conversation lock. Raises StaleFence or Behind."""
        ...

    async def mark(self, lease: Lease, notes: Checkpoint) -> None:
        """Keep this for whoever runs the response next, in place of what was noted before."""
        ...


class Ledger(RunLedger, Protocol):
    """The one write port. Every method checks before it writes, so an error means that nothing was written."""

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        """Accept a response, or say that it was accepted before.

        A ledger that several nodes share also keeps the limits that hold for all of them together (`Quota`): raises
        MustWait when this owner has enough running already, and TooMany when too many wait.
        """
        ...

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        """Take up to `limit` waiting responses, foreground first, then oldest; counts an attempt for each. Never more
        of an owner than may run on all nodes together (`Quota`), where nodes share the ledger."""
        ...

    async def seize(self, response_id: str, worker: str) -> Claim | None:
        """Raise the fence of a running response, whoever holds it; None when it has ended. Counts no attempt."""
        ...

    async def hand_back(self, leases: list[Lease]) -> None:
        """Give runs up for anyone to claim, counting no attempt."""
        ...

    async def confirm(self, worker: str, leases: list[Lease]) -> list[bool]:
        """Which of its leases a worker still holds. One that was freed, because the worker seemed to be dead, and that
        nobody has claimed since, is its own again."""
        ...

    async def free(self) -> int:
        """Free the leases of whoever is known to be dead, for anyone to claim; how many there were."""
        ...

    async def waiting(self) -> dict[str, int]:
        """How many responses wait for a worker, by owner."""
        ...

    async def answered(self, response_id: str) -> None:
        """The creating connection has its whole answer: a silent retry must not find this response any more."""
        ...

    async def hide(self, owner: str, response_id: str) -> None:
        """Delete a finished response: nobody finds it from now on. Raises NotFound."""
        ...
