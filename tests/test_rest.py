"""Threads get the interpreter soon while the event loop is busy with many short steps."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop

from outlive import app, server

# A step this long ends just before a thread that waits for the interpreter's lock has woken up.
STEP = 0.00015
SECONDS = 1.5
LONGEST = 0.3  # without a rest it was 0.6 to 1.6 s, with it 0.05 s


@pytest.fixture(autouse=True)
def switching_as_in_a_server() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(app.SWITCH_SECONDS)
    yield
    sys.setswitchinterval(before)


def test_a_thread_runs_soon_while_the_event_loop_is_busy_with_short_steps() -> None:
    waits: list[float] = []
    ends_at = time.monotonic() + SECONDS

    def run_often() -> None:
        while (began := time.monotonic()) < ends_at:
            time.sleep(0.001)
            waits.append(time.monotonic() - began)

    async def be_busy() -> None:
        resting = asyncio.create_task(server._rest_often())
        thread = threading.Thread(target=run_often)
        thread.start()
        while time.monotonic() < ends_at:
            step_ends_at = time.perf_counter() + STEP
            while time.perf_counter() < step_ends_at:
                pass
            await asyncio.sleep(0)
        resting.cancel()
        thread.join()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(be_busy())
    assert max(waits) < LONGEST
