"""Retry policy and statistics of a call."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits and delays of retries. The defaults outlast a restart or a deployment; the last three are for tests."""

    outage_seconds: float = 300.0
    """Give up when nothing has come through for this long."""
    contact_seconds: float = 15.0
    """The same limit for a submit to a server that has never answered: there may be none at that address."""
    first_delay: float = 0.25
    """Seconds before the first retry; doubled for each further retry that brings nothing."""
    longest_delay: float = 8.0
    jitter: Callable[[], float] = random.random
    """A number from 0 to 1. A delay lies between half and all of itself, so that many clients do not return at once."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] | None = None
    """`time.sleep` or `anyio.sleep` by default; for an AsyncOpenAI it must return an awaitable."""

    def delay(self, tries: int) -> float:
        longest = min(self.longest_delay, self.first_delay * 2.0 ** min(tries, 30))
        return longest * (0.5 + 0.5 * self.jitter())


@dataclass(slots=True)
class StreamStats:
    """Counters that are updated during a call. Pass one in to read it at any time, also after an error."""

    response_id: str | None = None
    """Set as soon as it is known."""
    polls: int = 0
    """Number of GETs that were answered."""
    resumes: int = 0
    """Number of times a stream was reopened after a break."""
    faults: int = 0
    """Number of errors that led to a retry."""
    resubmits: int = 0
    """Number of POSTs repeated under the same idempotency key."""
    outlive: bool = False
    """True once the server has identified itself as an Outlive."""
    fell_back: bool = False
    """True if a stream could not be resumed and the response was polled to its end instead."""
