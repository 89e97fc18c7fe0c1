"""The real clock and the real source of ids."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

BYTES = 18  # of randomness in an id
DRAW = 128


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class RandomIds:
    """Prefix, milliseconds and randomness. What is made one after the other sorts that way, so the index of ids grows
    at its end, and a commit touches few of its pages."""

    def __init__(self) -> None:
        self._drawn: Iterator[str] = iter(())

    def new(self, prefix: str) -> str:
        return f"{prefix}_{int(time.time() * 1000):012x}{self._draw()}"

    def _draw(self) -> str:
        # Many at a time: each draw from the system costs a system call.
        for digits in self._drawn:
            return digits
        random = os.urandom(DRAW * BYTES).hex()
        self._drawn = iter([random[at : at + 2 * BYTES] for at in range(0, len(random), 2 * BYTES)])
        return next(self._drawn)
