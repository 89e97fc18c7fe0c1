"""The packer: compresses the journals of responses that ended some time ago."""

import logging
from dataclasses import dataclass

from outlive.core.counts import Counts
from outlive.core.errors import StorageUnavailable
from outlive.engine.slots import Slots
from outlive.ports.clock import Clock
from outlive.ports.storage import Packing

log = logging.getLogger(__name__)

# Seconds between two rounds, at most.
EVERY = 15.0
# After each step, a pause of so many times its length: live responses have the disk and the CPU first. While some run,
# packing takes a few hundredths of a core.
REST, BUSY_REST = 4.0, 40.0
MIN_REST = 0.005


@dataclass(eq=False)
class Packer:
    """Packs journals in the background, in small steps."""

    _packing: Packing
    _clock: Clock
    _counts: Counts
    _after: float  # seconds
    _slots: Slots

    async def run(self) -> None:
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
        rest = BUSY_REST if self._slots.running else REST
        await self._clock.sleep(max(MIN_REST, (self._clock.monotonic() - began) * rest))
        return self._clock.monotonic()
