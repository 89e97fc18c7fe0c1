"""Responses with `store: false`: run like all others, on a ledger in memory, and dropped with their connection (D4)."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

import msgspec

from outlive.core.context.assemble import finish_calls
from outlive.core.endings import Outcome
from outlive.engine.delivery.committer import UNREAD_BYTES
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.run.run import Run, RunServices
from outlive.engine.usage import UsageMeter
from outlive.ports.journal import Batch, Journal
from outlive.ports.ledger import EphemeralLedger, Memory


class EphemeralStorage(msgspec.Struct, frozen=True):
    """The ledger and the journal of responses with `store: false`."""

    ledger: EphemeralLedger
    journal: Journal


class Journals:
    """The journal that readers see: the one in memory for responses that it holds, the database's for all others."""

    def __init__(self, memory: EphemeralStorage, stored: Journal) -> None:
        self._memory = memory
        self._stored = stored
        self.read_many = stored.read_many  # asked only for stored responses

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        journal = self._memory.journal if self._memory.ledger.holds(response_id) else self._stored
        return await journal.read(response_id, after, max_bytes)


@dataclass(eq=False)
class EphemeralRuns:
    """Runs responses that are not stored, each for the connection that created it."""

    ledger: EphemeralLedger
    _services: RunServices
    _live: LiveResponses
    _meter: UsageMeter
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def start(self, live: LiveResponse) -> asyncio.Task[None]:
        live.trim, live.pending.most = partial(self.ledger.trim, live.lease.response_id), UNREAD_BYTES
        self._live.add(live)
        task = self._tasks[live.lease.response_id] = asyncio.create_task(Run(self._services, live).run())
        return task

    def remember(self, response_id: str) -> Memory | None:
        """Return what it takes to continue a response that has ended; None if it failed."""
        live = self._live.get(response_id)
        if live is None or live.tail.cause is not None or not live.tail.ended:
            return None
        claim, request = live.claim, live.claim.request
        # Calls that were cut off are remembered too: their outputs are left out, not refused (D6b).
        items = [*finish_calls(request.input), *(item for _, item in sorted(live.output.items()))]
        if (before := claim.memory) is not None:
            return Memory([*before.items, *items], before.position, before.conversation, before.parent)
        if request.conversation is None and request.previous_response_id is None:
            return Memory(items)
        return Memory(items, claim.position, request.conversation, request.previous_response_id)

    def discard(self, response_id: str) -> None:
        """Stop the upstream call and drop everything: the reader is gone, or has it all."""
        if (task := self._tasks.pop(response_id, None)) is not None:
            task.cancel()
        if (live := self._live.get(response_id)) is not None:
            self._live.remove(live)
            if not live.tail.ended:
                usage = self._services.closer.make_record(live, Outcome(status="cancelled", at=0), live.fold.output)
                self._meter.count(usage, False)
        self.ledger.forget(response_id)

    async def drain(self, grace: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
