"""The sweeper: deletes what has expired, and erases the bytes of what was deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from outlive.core.errors import StorageUnavailable
from outlive.ports.clock import Clock
from outlive.ports.storage import Retention

log = logging.getLogger(__name__)

BATCH = 100
RETRY_SECONDS = 5.0
DAY = 86_400.0


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Days for which responses and conversations are kept after their last use; None: for ever."""

    response_days: float | None = 30.0
    conversation_days: float | None = None
    every_seconds: float = 60.0


class Sweeper:
    """Applies the retention policy in the background."""

    def __init__(self, retention: Retention, clock: Clock, policy: RetentionPolicy) -> None:
        self._retention = retention
        self._clock = clock
        self._policy = policy
        self._requested = asyncio.Event()
        self._unscrubbed = True  # an earlier process may have died between erasing and scrubbing

    def wake(self) -> None:
        """Sweep now: something was deleted."""
        self._unscrubbed = True
        self._requested.set()

    async def run(self) -> None:
        """Sweep regularly until cancelled."""
        while True:
            pause = self._policy.every_seconds
            try:
                await self.sweep()
            except StorageUnavailable as error:
                log.warning("sweep failed: %s", error.cause)
                pause = min(pause, RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._requested.wait()
            self._requested.clear()

    async def sweep(self) -> None:
        """Sweep once, in small batches, so that no running response waits long for the writer."""
        now = self._clock.now()
        before = [
            now - days * DAY if days is not None else None
            for days in (self._policy.response_days, self._policy.conversation_days)
        ]
        while await self._retention.expire(responses_before=before[0], conversations_before=before[1], limit=BATCH):
            pass
        await self._retention.forget_keys(now - DAY)
        while await self._retention.erase(BATCH):
            self._unscrubbed = True
        if self._unscrubbed:
            await self._retention.scrub()
            self._unscrubbed = False
