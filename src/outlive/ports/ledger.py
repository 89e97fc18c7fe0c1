"""The write port: what may change a stored response, each method one transaction."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from outlive.core.endings import TerminalStatus
from outlive.core.events import Json
from outlive.core.requests import CreateResponse


class Lease(msgspec.Struct, frozen=True):
    """The right to write one response's journal, until somebody raises the fence."""

    response_id: str
    key: int  # the database's own key of the response
    fence: int


class Place(msgspec.Struct, frozen=True):
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


class Admitted(msgspec.Struct, frozen=True):
    """What became of an admission: the new response's lease, or the id of the one that was there already."""

    place: Place | None = None
    lease: Lease | None = None
    attached: str | None = None


class Claim(msgspec.Struct, frozen=True):
    """A response that a worker has just taken."""

    lease: Lease
    owner: str
    request: CreateResponse
    place: Place
    attempts: int
    joints: list[int]
    background: bool
    waited: bool = False  # nobody had it before; only of what was seized


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


class RunLedger(Protocol):
    """What a running response needs of a ledger. A stale fence can write nothing."""

    def append(self, entries: list[Entry]) -> asyncio.Future[list[bool]]:
        """One commit for all of them; False for each whose lease is stale: its rows alone are dropped."""
        ...

    def close(self, closing: Closing) -> asyncio.Future[None]:
        """Terminal event, snapshot, turn, lease and conversation lock. Raises StaleFence."""
        ...

    async def mark(self, lease: Lease, joints: list[int]) -> None:
        """Note where a run went on after a break, so that its final object can say so."""
        ...


class Ledger(RunLedger, Protocol):
    """The one write port. Every method checks before it writes, so an error means that nothing was written."""

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]: ...

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        """Take up to `limit` waiting responses, foreground first, then oldest; counts an attempt for each."""
        ...

    async def seize(self, response_id: str, worker: str) -> Claim | None:
        """Raise the fence of a running response, whoever holds it; None when it has ended. Counts no attempt."""
        ...

    async def hand_back(self, leases: list[Lease]) -> None:
        """Give runs up for anyone to claim, counting no attempt."""
        ...

    async def free(self) -> None:
        """At start: take the leases of whoever is known to be dead."""
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
