"""Long steps of an event loop: failing a test that has one, and reading those that a server has logged."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from outlive.watchdog import LongStep, Watchdog

LIMIT_SECONDS = 0.05
_LOGGED = re.compile(r"event loop blocked for (\d+) ms \((\d+) ms of it computing\) in (.*)")


@contextlib.contextmanager
def no_long_steps(seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Fail if a step of the running loop computes for longer. Only computing counts: a busy machine is no fault."""
    found: list[LongStep] = []
    watchdog = Watchdog(seconds, found.append)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
    long = [step for step in found if step.cpu_seconds >= seconds]
    assert not long, long


def read_long_steps(log: str) -> list[LongStep]:
    """Return the steps that the watchdog of a server has logged."""
    return [LongStep(int(wall) / 1000, int(cpu) / 1000, place) for wall, cpu, place in _LOGGED.findall(log)]
