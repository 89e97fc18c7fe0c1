"""The sweeper, which hides what has expired, deletes it a day later, and erases the bytes of what was deleted; and the
packer, which compresses the journals of responses that ended some time ago."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlive.core.counts import Counts
from outlive.core.errors import StorageUnavailable
from outlive.core.owners import Policy
from outlive.core.usage import DAY
from outlive.engine.slots import Slots
from outlive.engine.waiting import wait
from outlive.ports.clock import Clock
from outlive.ports.retention import Retention
from outlive.ports.storage import Packing

log = logging.getLogger(__name__)

BATCH = 100
RETRY_SECONDS = 5.0
# Steps in which the file is shrunk in one round, and the pause after each, for running responses need the disk too.
MOST_STEPS = 200
REST_SECONDS = 0.02
# Seconds by which two clocks may differ: the wall clock and the monotonic clock, or those of two nodes.
CLOCK_TOLERANCE = 300.0
# Seconds between two rounds of packing, at most.
PACK_EVERY = 15.0
# After each step of packing, a pause of so many times its length: live responses have the disk and the CPU first. While
# some run, packing takes a few hundredths of a core.
REST, BUSY_REST = 4.0, 40.0
MIN_REST = 0.005


@dataclass(eq=False)
class Sweeper:
    """Applies the retention policy in the background: days for which responses and conversations are kept after their
    last use; None: for ever."""

    _retention: Retention
    _clock: Clock
    _response_days: float | None
    _conversation_days: float | None
    _every_seconds: float
    _owners: Mapping[str, Policy]
    _requested: asyncio.Event = field(default_factory=asyncio.Event)
    _unscrubbed: bool = True  # an earlier process may have died between erasing and scrubbing

    def __post_init__(self) -> None:
        self._clocks_apart = self._clock.now() - self._clock.monotonic()

    def wake(self) -> None:
        """Sweep now: something was deleted."""
        self._unscrubbed = True
        self._requested.set()

    async def run(self) -> None:
        while True:
            pause = self._every_seconds
            try:
                await self.sweep()
            except StorageUnavailable as error:
                log.warning("sweep failed: %s", error.cause)
                pause = min(pause, RETRY_SECONDS)
            await wait(self._requested, pause)

    async def sweep(self) -> None:
        """Sweep once, in small batches, so that no running response waits long for the writer."""
        now = self._clock.now()
        restored = 0
        while count := await self._retention.restore(now + CLOCK_TOLERANCE, BATCH):
            restored += count
        if restored:
            log.warning("the clock was wrong: restored %d things that expired at a time yet to come", restored)
        apart = now - self._clock.monotonic()
        jump, self._clocks_apart = apart - self._clocks_apart, apart
        if abs(jump) > CLOCK_TOLERANCE:
            log.warning("the clock was changed by %.0f s: nothing expires in this round", jump)
        else:
            await self._expire(now)
        while await self._retention.erase(BATCH):
            self._unscrubbed = True
        for _ in range(MOST_STEPS):
            if not await self._retention.shrink():
                break
            self._unscrubbed = True
            await self._clock.sleep(REST_SECONDS)
        if self._unscrubbed:
            await self._retention.scrub()
            self._unscrubbed = False

    async def _expire(self, now: float) -> None:
        days_of = {name: own.retention_days for name, own in self._owners.items() if own.retention_days is not None}
        all_others = (None, self._response_days, self._conversation_days, [*days_of])
        for owner, *kept, but in [all_others, *((owner, days, days, []) for owner, days in days_of.items())]:
            before = [now - days * DAY if days is not None else None for days in kept]
            while await self._retention.expire(
                responses_before=before[0], conversations_before=before[1], at=now, limit=BATCH, owner=owner, but=but
            ):
                pass
        while await self._retention.delete_expired(now - DAY, BATCH):
            pass
        while await self._retention.forget_keys(now - DAY):
            pass


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
            await self._clock.sleep(min(PACK_EVERY, self._after))

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
