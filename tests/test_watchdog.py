"""The watchdog finds long steps of the event loop, with their place, and leaves short ones and an idle loop alone."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from outlive.watchdog import LongStep, Watchdog
from tests.support.long_steps import no_long_steps

SECONDS = 0.02
BLOCK = threading.Event()
LIST = "[" + "[]," * 2_000_000 + "0]"  # over 100 ms, for a step below twice the threshold is found by chance


def wait_in_python() -> None:
    BLOCK.wait(SECONDS * 10)


def decode_in_c() -> None:
    json.loads(LIST)


def find_steps(work: Callable[[], None], loop: Callable[[], asyncio.AbstractEventLoop]) -> list[LongStep]:
    """Do the work in one step, and return what the watchdog found of it."""
    found: list[LongStep] = []

    async def check() -> None:
        watchdog = Watchdog(SECONDS, found.append)
        watchdog.start()
        await asyncio.sleep(SECONDS * 3)
        found.clear()
        work()
        async with asyncio.timeout(30):
            while not any(work.__name__ in step.place for step in found):
                await asyncio.sleep(SECONDS)
        watchdog.stop()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(check())
    return [step for step in found if work.__name__ in step.place]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_step_that_blocks_is_found_with_its_place(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    step = find_steps(wait_in_python, loop)[0]
    assert step.seconds >= SECONDS
    assert step.cpu_seconds < step.seconds / 2
    assert "test_watchdog.py" in step.place


def test_a_step_that_holds_the_interpreters_lock_is_found() -> None:
    step = find_steps(decode_in_c, uvloop.new_event_loop)[0]
    assert step.cpu_seconds >= SECONDS


def test_a_long_step_fails_a_test_that_allows_none() -> None:
    async def check() -> None:
        with no_long_steps(SECONDS):
            await asyncio.sleep(SECONDS * 3)
            decode_in_c()
            await asyncio.sleep(SECONDS * 20)

    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        pytest.raises(AssertionError, match="decode_in_c"),
    ):
        runner.run(check())


def test_an_idle_loop_is_not_woken() -> None:
    woken = 0

    async def check() -> None:
        nonlocal woken
        watchdog = Watchdog(SECONDS, lambda step: None)
        answer = watchdog._answer

        def count() -> None:
            nonlocal woken
            woken += 1
            answer()

        watchdog._answer = count  # type: ignore[method-assign]
        watchdog.start()
        await asyncio.sleep(SECONDS * 20)
        watchdog.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())
    assert woken < 10  # of twenty looks: when it begins and ends to wait it may be seen at work


def test_each_place_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> Watchdog:
        return Watchdog(SECONDS)

    warn = asyncio.run(make())._warn
    now = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for place in ("a.py:1 f < b.py:2 g", "a.py:1 f < c.py:3 h", "d.py:4 i"):
            warn(LongStep(0.13, 0.125, place))
        assert [record.getMessage() for record in caplog.records] == [
            "event loop blocked for 130 ms (125 ms of it computing) in a.py:1 f < b.py:2 g",
            "event loop blocked for 130 ms (125 ms of it computing) in d.py:4 i",
        ]
        monkeypatch.setattr("outlive.watchdog.monotonic", lambda: now + 100)
        warn(LongStep(0.13, 0.125, "d.py:4 i"))
    assert len(caplog.records) == 3
