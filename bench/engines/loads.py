"""The two loads that every engine carries, and how each is counted."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from types import TracebackType

RUNS = 1000  # accepted durably, taken by a worker, ended
CALLERS = 8  # who ask for them, each for one at a time
STREAMS = 20  # runs at a time ...
EVENTS = 200  # ... each with so many events, every one durable before the next


def stamp(number: int) -> bytes:
    """An event of the size that a delta has on the wire."""
    return b'{"type":"response.output_text.delta","sequence_number":%d,"delta":" word"}' % number + b" " * 120


async def call_all(accept: Callable[[], Awaitable[object]]) -> list[object]:
    """All the runs, accepted by so many callers at a time; what each was answered."""

    async def call() -> list[object]:
        return [await accept() for _ in range(RUNS // CALLERS)]

    answers = await asyncio.gather(*(call() for _ in range(CALLERS)))
    return [answer for each in answers for answer in each]


class Load:
    """A stretch of time, and what this process used of the processor in it."""

    def __enter__(self) -> Load:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu


def report(name: str, runs: Load, started: list[float], streams: Load) -> None:
    """Return the figures as one line of text."""
    events = STREAMS * EVENTS
    print(
        json.dumps(
            {
                "engine": name,
                "runs_per_second": RUNS / runs.seconds,
                "run_cpu_ms": runs.cpu / RUNS * 1e3,
                "start_ms": statistics.median(started) * 1e3,
                "events_per_second": events / streams.seconds,
                "event_cpu_us": streams.cpu / events * 1e6,
            }
        ),
        flush=True,
    )
