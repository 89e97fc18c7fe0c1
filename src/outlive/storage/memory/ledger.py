"""The ledger of `store: false`: a response's events, in this process's memory, for as long as it runs."""

from __future__ import annotations

import asyncio

from outlive.core.errors import StaleFence
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, AppendResults, Checkpoint, Closing, Entry, Lease
from outlive.storage.memory.journal import MemoryJournal


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
