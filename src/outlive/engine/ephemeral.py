"""Responses with `store: false`: run like all others, on a ledger in memory, and dropped with their connection (D4)."""

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial

from outlive.core.context.assemble import finish_calls
from outlive.core.endings import Outcome
from outlive.core.errors import StaleFence
from outlive.core.events import is_last, split_frames
from outlive.engine.delivery.committer import UNREAD_BYTES
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.run.run import Run, RunServices
from outlive.engine.usage import UsageMeter
from outlive.ports.journal import Batch, Journal
from outlive.ports.ledger import AppendResult, AppendResults, Checkpoint, Closing, Entry, Lease, Memory
from outlive.ports.refusals import response_not_found


class MemoryJournal:
    """The journal of responses with `store: false`: events in memory, for as long as each is read. All others are read
    from the database's, if there is one: `read_many` is asked only for those."""

    def __init__(self, stored: Journal | None = None) -> None:
        self.batches: dict[str, list[Batch]] = {}
        self._stored = stored

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        if (batches := self.batches.get(response_id)) is None:
            if self._stored is None:
                raise response_not_found(response_id)
            return await self._stored.read(response_id, after, max_bytes)
        parts: list[bytes] = []
        last, size = after, 0
        for batch in batches[bisect_right(batches, after, key=lambda batch: batch.last) :]:
            if batch.first > last + 1:
                raise response_not_found(response_id)  # it was read, and dropped
            parts += split_frames(batch.frames)[after + 1 - batch.first :] if batch.first <= after else [batch.frames]
            last, size = batch.last, size + len(batch.frames)
            if size >= max_bytes:
                break
        return Batch(after + 1, last, b"".join(parts)) if parts or is_last(batches[-1].frames) else None

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        if self._stored is not None:
            return await self._stored.read_many(after, max_bytes)
        known = {each: number for each, number in after.items() if each in self.batches}
        found = {each: await self.read(each, number, max_bytes) for each, number in known.items()}
        new = {each: batch for each, batch in found.items() if batch is not None}
        return new | dict.fromkeys(after.keys() - known.keys())


class MemoryLedger:
    """The ledger of responses with `store: false`."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._fences: dict[str, int] = {}
        self._keys = 0

    def admit(self, response_id: str, frames: bytes, count: int) -> Lease:
        self._keys += 1
        self._fences[response_id] = 1
        self._journal.batches[response_id] = [Batch(0, count - 1, frames)]
        return Lease(response_id, self._keys, 1)

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        future: asyncio.Future[AppendResults] = asyncio.get_running_loop().create_future()
        future.set_result([self._append(entry) for entry in entries])
        return future

    def close(self, closing: Closing) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._append(closing.entry) is AppendResult.WRITTEN:
            del self._fences[closing.entry.lease.response_id]
            future.set_result(None)
        else:
            future.set_exception(StaleFence())
        return future

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        """Do nothing: no other worker can take such a run over."""

    def trim(self, response_id: str, after: int) -> int:
        """Drop the events up to a number, which were read. Returns the bytes of the others."""
        batches = self._journal.batches.get(response_id, [])
        del batches[: bisect_right(batches, after, 0, max(len(batches) - 1, 0), key=lambda batch: batch.last)]
        return sum(len(batch.frames) for batch in batches if batch.last > after)

    def forget(self, response_id: str) -> None:
        """Drop all that is left of a response once it has no reader."""
        self._fences.pop(response_id, None)
        self._journal.batches.pop(response_id, None)

    def _append(self, entry: Entry) -> AppendResult:
        if self._fences.get(entry.lease.response_id) != entry.lease.fence:
            return AppendResult.STALE
        last = entry.first + entry.count - 1
        self._journal.batches[entry.lease.response_id].append(Batch(entry.first, last, entry.frames))
        return AppendResult.WRITTEN


@dataclass(eq=False)
class EphemeralRuns:
    """Runs responses that are not stored, each for the connection that created it."""

    ledger: MemoryLedger
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
