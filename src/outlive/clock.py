"""The system clock and the random ids of a running server."""

import asyncio
import os
import time

RANDOM_BYTES = 18  # in an id
BATCH = 128  # ids per system call


class SystemClock:
    """Wall clock, monotonic clock and sleep of this machine."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


class RandomIds:
    """Ids of prefix, milliseconds and random digits.

    They sort by their time, so the index of ids grows at its end, and a commit touches few of its pages.
    """

    def __init__(self) -> None:
        self._batch: list[str] = []

    def new(self, prefix: str) -> str:
        if not self._batch:
            self._batch = os.urandom(BATCH * RANDOM_BYTES).hex(" ", RANDOM_BYTES).split()
        return f"{prefix}_{int(time.time() * 1000):012x}{self._batch.pop()}"
