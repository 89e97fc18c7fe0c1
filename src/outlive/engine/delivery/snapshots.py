"""Folds made from the journal: of a response that is taken over, and of those that run on other nodes."""

from __future__ import annotations

import asyncio

from outlive.core.fold import Fold
from outlive.ports.clock import Clock
from outlive.ports.journal import Journal

# Read at once to take a response over; more than INLINE_BYTES of it is folded in a thread.
FOLD_BYTES = 1024 * 1024
INLINE_BYTES = 64 * 1024
# Seconds for which a fold is kept after it was last asked for: longer than clients are asked to wait between two polls.
KEEP_SECONDS = 15.0
MAX_FOLDS = 1000
# Folded at a time while streams wait for the event loop: one or two milliseconds' work.
PAGE_BYTES = 32 * 1024


async def replay(journal: Journal, response_id: str) -> Fold:
    """Make a new fold of a response from its journal."""
    fold = Fold()
    while (batch := await journal.read(response_id, fold.last, FOLD_BYTES)) is not None and batch.frames:
        if len(batch.frames) > INLINE_BYTES:
            await asyncio.to_thread(fold.replay, batch.frames)
        else:
            fold.replay(batch.frames)
    return fold


class RemoteFolds:
    """Keeps the folds of responses that run on other nodes, so that each poll folds only the new events."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._folds: dict[str, tuple[Fold, float]] = {}  # least recently asked for first

    def __len__(self) -> int:
        return len(self._folds)

    async def get(self, response_id: str) -> Fold:
        """Return the fold of the durable events."""
        known = self._folds.pop(response_id, None)
        fold = known[0] if known is not None else await replay(self._journal, response_id)
        self._keep(response_id, fold)
        if known is not None:
            await self._catch_up(response_id, fold)
        return fold

    def drop_old(self) -> None:
        """Drop the folds that were not asked for in KEEP_SECONDS, and those that have ended."""
        before = self._clock.monotonic() - KEEP_SECONDS
        for response_id, (fold, asked_at) in list(self._folds.items()):
            if asked_at < before or fold.ended:
                del self._folds[response_id]

    def _keep(self, response_id: str, fold: Fold) -> None:
        self._folds[response_id] = (fold, self._clock.monotonic())
        if len(self._folds) > MAX_FOLDS:
            del self._folds[next(iter(self._folds))]

    async def _catch_up(self, response_id: str, fold: Fold) -> None:
        while (batch := await self._journal.read(response_id, fold.last, PAGE_BYTES)) is not None and batch.frames:
            # Of two polls at the same time, which read the same page, the first to come back folds it.
            if batch.first == fold.last + 1:
                fold.replay(batch.frames)
            await asyncio.sleep(0)
