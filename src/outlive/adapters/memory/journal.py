"""The journal of `store: false`: what the memory ledger holds, read back."""

from __future__ import annotations

from outlive.core.events import split_frames
from outlive.ports.journal import Batch


class MemoryJournal:
    def __init__(self) -> None:
        self.batches: dict[str, list[Batch]] = {}

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        parts: list[bytes] = []
        last = after
        for batch in self.batches.get(response_id, ()):
            if batch.last <= after:
                continue
            skip = after + 1 - batch.first
            parts.append(b"".join(split_frames(batch.frames)[skip:]) if skip > 0 else batch.frames)
            last = batch.last
            if sum(map(len, parts)) >= max_bytes:
                break
        return Batch(after + 1, last, b"".join(parts)) if parts else None
