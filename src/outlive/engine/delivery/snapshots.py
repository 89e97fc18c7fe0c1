"""The folds of responses that run elsewhere, kept while somebody asks for them: each asking folds only what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outlive.core.fold import Fold
from outlive.ports.clock import Clock
from outlive.ports.journal import Journal

# How long a fold is kept after it was last asked for: longer than clients are told to wait between two polls.
KEEP_SECONDS = 15.0
MOST = 1000
# So much is folded at a time while streams wait for it: one or two milliseconds' work.
PAGE_BYTES = 32 * 1024

Replay = Callable[[str], Awaitable[Fold]]


class Folds:
    def __init__(self, journal: Journal, replay: Replay, clock: Clock) -> None:
        self._journal = journal
        self._replay = replay
        self._clock = clock
        self._folds: dict[str, tuple[Fold, float]] = {}  # the one asked for longest ago comes first

    def __len__(self) -> int:
        return len(self._folds)

    async def get(self, response_id: str) -> Fold:
        """The response as of its last committed event."""
        known = self._folds.pop(response_id, None)
        fold = known[0] if known is not None else await self._replay(response_id)
        self._keep(response_id, fold)
        if known is not None:
            await self._catch_up(response_id, fold)
        return fold

    def drop_old(self) -> None:
        """Forget what nobody has asked for in a while."""
        before = self._clock.monotonic() - KEEP_SECONDS
        for response_id, (fold, asked_at) in list(self._folds.items()):
            if asked_at < before or fold.ended:
                del self._folds[response_id]

    def _keep(self, response_id: str, fold: Fold) -> None:
        self._folds[response_id] = (fold, self._clock.monotonic())
        if len(self._folds) > MOST:
            del self._folds[next(iter(self._folds))]

    async def _catch_up(self, response_id: str, fold: Fold) -> None:
        while (batch := await self._journal.read(response_id, fold.last, PAGE_BYTES)) is not None and batch.frames:
            # Two who ask at the same time read the same page: the first to come back folds it.
            if batch.first == fold.last + 1:
                fold.replay(batch.frames)
            await asyncio.sleep(0)
