"""Waiting: rounds go on while the storage is down, an event is waited for only so long, and tries are counted."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from outlive.core.errors import StorageUnavailable
from outlive.engine.waiting import STORAGE_PAUSE, keep_trying, repeat, wait
from tests.engine.harness import FixedClock


def test_rounds_go_on_after_one_that_hangs_or_meets_a_storage_that_is_down() -> None:
    async def body() -> None:
        rounds = 0
        enough = asyncio.Event()

        async def job() -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 1:
                raise StorageUnavailable("job", "a test says so")
            if rounds == 2:
                await asyncio.Event().wait()
            enough.set()

        repeating = asyncio.create_task(repeat(job, 0.001, 0.01))
        await asyncio.wait_for(enough.wait(), 60)
        repeating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await repeating
        assert rounds >= 3

    asyncio.run(body())


def test_an_event_is_cleared_once_it_came_and_waited_for_only_so_long() -> None:
    async def body() -> None:
        event = asyncio.Event()
        event.set()
        await wait(event, 60)
        assert not event.is_set()
        await wait(event, 0.001)

    asyncio.run(body())


def test_what_needs_the_storage_is_tried_until_it_is_back_or_tries_are_used_up() -> None:
    async def body() -> None:
        failing, clock = 3, FixedClock()

        async def work() -> str:
            nonlocal failing
            failing -= 1
            if failing >= 0:
                raise StorageUnavailable("work", "a test says so")
            return "done"

        assert await keep_trying(work, clock) == "done"
        assert clock.slept == [STORAGE_PAUSE] * 3
        failing = 2
        with pytest.raises(StorageUnavailable):
            await keep_trying(work, clock, tries=2)
        assert clock.slept == [STORAGE_PAUSE] * 4

    asyncio.run(body())
