"""The real clock and the real source of ids."""

from __future__ import annotations

import asyncio
import os
import time


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

    def new(self, prefix: str) -> str:
        return f"{prefix}_{int(time.time() * 1000):012x}{os.urandom(18).hex()}"
