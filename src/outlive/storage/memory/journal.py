"""The journal of `store: false`: what the memory ledger holds, read back."""

from __future__ import annotations

from bisect import bisect_right

from outlive.core.errors import NotFound
from outlive.core.events import is_last, split_frames
from outlive.ports.journal import Batch


class MemoryJournal:
    def __init__(self) -> None:
        self.batches: dict[str, list[Batch]] = {}

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        if response_id not in self.batches:
            raise NotFound(f"Response with id '{response_id}' not found.")
        parts: list[bytes] = []
        last, size = after, 0
        batches = self.batches[response_id]
        for at in range(bisect_right(batches, after, key=lambda batch: batch.last), len(batches)):
            batch = batches[at]
            skip = after + 1 - batch.first
            parts.append(b"".join(split_frames(batch.frames)[skip:]) if skip > 0 else batch.frames)
            last, size = batch.last, size + len(parts[-1])
            if size >= max_bytes:
                break
        ended = is_last(batches[-1].frames)
        return Batch(after + 1, last, b"".join(parts)) if parts or ended else None

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        found: dict[str, Batch | None] = {}
        for response_id, number in after.items():
            if response_id not in self.batches:
                found[response_id] = None
            elif (batch := await self.read(response_id, number, max_bytes)) is not None:
                found[response_id] = batch
        return found
