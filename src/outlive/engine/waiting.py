"""Waiting: for the next round of a background job, and for a storage that is down."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive.core.errors import StorageUnavailable
from outlive.ports.clock import Clock

# While the storage is down: seconds until the next try.
STORAGE_PAUSE = 1.0

T = TypeVar("T")


async def repeat(job: Callable[[], Awaitable[None]], seconds: float, most: float | None = None) -> None:
    """Do a job every so many seconds until cancelled; one that takes longer than `most` is given up. What was known
    stays as it is while the storage is down: the next round comes soon."""
    while True:
        await asyncio.sleep(seconds)
        with contextlib.suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(most):
                await job()


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, that long at most, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    event.clear()


async def keep_trying(work: Callable[[], Awaitable[T]], clock: Clock, tries: int = -1) -> T:
    """Try again and again while the storage is down, so often at most if `tries` is not negative."""
    while True:
        try:
            return await work()
        except StorageUnavailable:
            tries -= 1
            if tries == 0:
                raise
        await clock.sleep(STORAGE_PAUSE)
