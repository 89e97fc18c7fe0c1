"""The log of one run: all that the run's parts (tools, fitting, reattaching) see of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from outlive.core.errors import StorageUnavailable
from outlive.core.events import AnyDraft, Json, Renaming
from outlive.core.fold import Fold
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.waiting import STORAGE_PAUSE
from outlive.ports.clock import Clock
from outlive.ports.ledger import Checkpoint, Claim


class RunLog:
    """Emits events, waits until they are durable, and saves the checkpoint that the next worker would start from."""

    __slots__ = ("_committer", "_live", "claim", "clock", "emit", "fold", "response_id")

    def __init__(self, live: LiveResponse, committer: Committer, clock: Clock) -> None:
        self.claim: Claim = live.claim
        self.response_id = live.lease.response_id
        self.fold: Fold = live.fold  # of the durable events
        self.clock = clock
        self._live = live
        self._committer = committer
        # Raises StaleFence if the response is lost. Bound here, for it is called for every event.
        self.emit: Callable[[list[AnyDraft]], None] = partial(committer.submit, live)
        if live.claim.request.event_names != "openai":
            renaming = Renaming()
            self.emit = lambda drafts: committer.submit(live, renaming.rename(drafts))

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint as last saved."""
        return self._live.checkpoint

    @property
    def is_lost(self) -> bool:
        """True if this worker may not write the response any more."""
        return self._live.tail.lost

    @property
    def is_durable(self) -> bool:
        """True if everything emitted is durable."""
        return self._live.is_durable

    async def flush(self) -> None:
        """Wait until everything emitted is durable, or the response is lost."""
        await self._committer.flush(self._live)

    async def end_step(self, usage: Json | None, ignored: list[tuple[int, Json]]) -> None:
        """Count a finished step in the checkpoint, with the usage of all steps so far and the calls ignored so far."""
        self._live.step_usage = None
        self._live.count_attempt()
        await self.save_checkpoint(usage=usage, steps=self.checkpoint.steps + 1, ignored=ignored)

    async def save_checkpoint(self, **changes: Any) -> None:
        """Change the checkpoint and save it. Waits for a storage that is down: that must not end a run."""
        live = self._live
        live.checkpoint = msgspec.structs.replace(live.checkpoint, paid=live.paid, **changes)
        while not live.tail.lost:
            try:
                await live.ledger.save_checkpoint(live.lease, live.checkpoint)
                return
            except StorageUnavailable:
                await self.clock.sleep(STORAGE_PAUSE)
