"""The packer: compresses the journals of responses that ended some time ago."""

from __future__ import annotations

import logging

from outlive.core.counts import Counts
from outlive.core.errors import StorageUnavailable
from outlive.ports.clock import Clock
from outlive.ports.storage import Packing

log = logging.getLogger(__name__)

# Seconds between two rounds, at most.
EVERY = 15.0
# After each step, a pause of so many times its length: live responses have the disk and the CPU first.
REST = 4.0
MIN_REST = 0.005


class Packer:
    """Packs journals in the background, in small steps."""

    def __init__(self, packing: Packing, clock: Clock, counts: Counts, after_seconds: float) -> None:
        self._packing = packing
        self._clock = clock
        self._counts = counts
        self._after = after_seconds

    async def run(self) -> None:
        """Pack regularly until cancelled."""
        while True:
            try:
                await self.pack(self._clock.now() - self._after)
            except StorageUnavailable as error:
                log.warning("packing journals failed: %s", error.cause)
            await self._clock.sleep(min(EVERY, self._after))

    async def pack(self, ended_before: float) -> None:
        """Pack the journals of all responses that ended before this time, then delete what they leave behind."""
        began = self._clock.monotonic()
        while (packed := await self._packing.pack(ended_before)).responses:
            self._counts.packed_responses += packed.responses
            self._counts.packed_bytes["before"] += packed.before
            self._counts.packed_bytes["after"] += packed.after
            began = await self._rest(began)
        while await self._packing.release(ended_before):
            began = await self._rest(began)

    async def _rest(self, began: float) -> float:
        await self._clock.sleep(max(MIN_REST, (self._clock.monotonic() - began) * REST))
        return self._clock.monotonic()
