"""The system clock and the random ids of a running server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

RANDOM_BYTES = 18  # in an id
BATCH = 128  # ids per system call


class SystemClock:
    """Wall clock, monotonic clock and sleep of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RandomIds:
    """Ids of prefix, milliseconds and random digits.

    They sort by their time, so the index of ids grows at its end, and a commit touches few of its pages.
    """

    def __init__(self) -> None:
        self._batch: Iterator[str] = iter(())

    def new(self, prefix: str) -> str:
        return f"{prefix}_{int(time.time() * 1000):012x}{self._draw()}"

    def _draw(self) -> str:
        # In batches, because each read from the system is a system call.
        for digits in self._batch:
            return digits
        random = os.urandom(BATCH * RANDOM_BYTES).hex()
        self._batch = iter([random[at : at + 2 * RANDOM_BYTES] for at in range(0, len(random), 2 * RANDOM_BYTES)])
        return next(self._batch)
