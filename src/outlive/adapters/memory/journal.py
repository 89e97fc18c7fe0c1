"""The journal of `store: false`: what the memory ledger holds, read back."""

from __future__ import annotations

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
        last = after
        for batch in self.batches[response_id]:
            if batch.last <= after:
                continue
            skip = after + 1 - batch.first
            parts.append(b"".join(split_frames(batch.frames)[skip:]) if skip > 0 else batch.frames)
            last = batch.last
            if sum(map(len, parts)) >= max_bytes:
                break
        ended = is_last(self.batches[response_id][-1].frames)
        return Batch(after + 1, last, b"".join(parts)) if parts or ended else None
