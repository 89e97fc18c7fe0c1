"""The sweeper: hides what has expired, erases what was deleted, and keeps readers awake."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from outlive.core.errors import StorageUnavailable
from outlive.ports.clock import Clock
from outlive.ports.retention import Retention

log = logging.getLogger(__name__)

BATCH = 100
RETRY_SECONDS = 5.0
DAY = 86_400.0


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept after their last use; None: for ever."""

    response_days: float | None = 30.0
    conversation_days: float | None = None
    every_seconds: float = 60.0


class Sweeper:
    def __init__(self, keeper: Retention, clock: Clock, retention: RetentionPolicy) -> None:
        self._keeper = keeper
        self._clock = clock
        self._retention = retention
        self._wanted = asyncio.Event()
        self._unscrubbed = True  # a process before us may have died between erasing and scrubbing

    def wake(self) -> None:
        """Something was deleted: do not wait for the next round."""
        self._unscrubbed = True
        self._wanted.set()

    async def run(self) -> None:
        while True:
            pause = self._retention.every_seconds
            try:
                await self.sweep()
            except StorageUnavailable as error:
                log.warning("sweeping has to wait: %s", error.message)
                pause = min(pause, RETRY_SECONDS)
            except Exception:
                log.exception("sweeping failed")  # a mistake of ours; the next round may still get further
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            self._wanted.clear()

    async def sweep(self) -> None:
        """One round. In small batches, so that no running response waits long for the writer."""
        now = self._clock.now()
        before = [
            now - days * DAY if days is not None else None
            for days in (self._retention.response_days, self._retention.conversation_days)
        ]
        while await self._keeper.expire(responses_before=before[0], conversations_before=before[1], limit=BATCH):
            pass
        await self._keeper.forget_keys(now - DAY)
        while await self._keeper.erase(BATCH):
            self._unscrubbed = True
        if self._unscrubbed:
            await self._keeper.scrub()
            self._unscrubbed = False
