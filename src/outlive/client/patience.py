"""How long and how often to try again, and what came of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How outages are met. The defaults outlast a restart or a deployment; the last three are there for tests."""

    outage_seconds: float = 300.0
    """Give up when nothing at all has come through for so long."""
    contact_seconds: float = 15.0
    """The same for a submit to a server that has never answered: perhaps there is none."""
    first_delay: float = 0.25
    """Seconds before the first new try; doubled for each further one that brings nothing."""
    longest_delay: float = 8.0
    jitter: Callable[[], float] = random.random
    """From 0 to 1. A delay is between half and all of itself, so that a thousand clients do not come back at once."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Any] | None = None
    """`time.sleep` or `asyncio.sleep` unless given; for an AsyncOpenAI it must return an awaitable."""

    def delay(self, tries: int) -> float:
        longest = min(self.longest_delay, self.first_delay * 2.0 ** min(tries, 30))
        return longest * (0.5 + 0.5 * self.jitter())


@dataclass(slots=True)
class Progress:
    """Filled in while a call goes on; pass one in and read it whenever you like, after an error too."""

    response_id: str | None = None
    """As soon as it is known."""
    polls: int = 0
    """GETs that were answered."""
    resumes: int = 0
    """How often a stream was taken up again."""
    faults: int = 0
    """Errors that were met by trying again."""
    resubmits: int = 0
    """POSTs repeated under the same idempotency key."""
    outlive: bool = False
    """Whether the server is an Outlive."""
    fell_back: bool = False
    """Whether a stream could not be taken up and was polled to its end instead."""
