"""The ledger and the journal of `store: false`: events in this process's memory, for as long as a response runs."""

import asyncio
from bisect import bisect_right

from outlive.core.errors import StaleFence
from outlive.core.events import is_last
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, AppendResults, Checkpoint, Closing, Entry, Lease
from outlive.ports.refusals import response_not_found
from outlive.storage.rows import gather, read_each


class MemoryJournal:
    def __init__(self) -> None:
        self.batches: dict[str, list[Batch]] = {}

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        return self._read(response_id, after, max_bytes)

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        return read_each(after, lambda response_id, number: self._read(response_id, number, max_bytes))

    def _read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        if response_id not in self.batches:
            raise response_not_found(response_id)
        batches = self.batches[response_id]
        begin = bisect_right(batches, after, key=lambda batch: batch.last)
        # One before that too: without any, the journal would seem to be erased.
        from_before = range(max(begin - 1, 0), len(batches))
        rows = ((b.first, b.last - b.first + 1, b.frames, 0.0) for b in map(batches.__getitem__, from_before))
        return gather(response_id, rows, is_last(batches[-1].frames), after, max_bytes)


class MemoryLedger:
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

    def holds(self, response_id: str) -> bool:
        """Return True if the response was admitted here and not forgotten yet."""
        return response_id in self._journal.batches

    def trim(self, response_id: str, after: int) -> int:
        batches = self._journal.batches.get(response_id, [])
        del batches[: bisect_right(batches, after, 0, max(len(batches) - 1, 0), key=lambda batch: batch.last)]
        return sum(len(batch.frames) for batch in batches if batch.last > after)

    def forget(self, response_id: str) -> None:
        self._fences.pop(response_id, None)
        self._journal.batches.pop(response_id, None)

    def _append(self, entry: Entry) -> AppendResult:
        if self._fences.get(entry.lease.response_id) != entry.lease.fence:
            return AppendResult.STALE
        last = entry.first + entry.count - 1
        self._journal.batches[entry.lease.response_id].append(Batch(entry.first, last, entry.frames))
        return AppendResult.WRITTEN
