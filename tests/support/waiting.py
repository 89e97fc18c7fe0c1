"""Polling for conditions that show only from outside a process, and measuring how long something took."""

from __future__ import annotations

import time
from collections.abc import Callable

# An upper bound, reached only by tests that fail: as long as a busy machine may need.
TIMEOUT_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], what: str, timeout: float = TIMEOUT_SECONDS) -> None:
    """Poll until the condition holds; fail with `what` after the timeout."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"still not true after {timeout:g} s: {what}"
        time.sleep(0.02)


class Stopwatch:
    """Measures the seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started
