"""Time comes in by the door, so that tests are exact."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """What time it is, and how long something takes."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None: ...
