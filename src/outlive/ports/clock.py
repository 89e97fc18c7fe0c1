"""The clock as a port, so that tests control time."""

from typing import Protocol


class Clock(Protocol):
    """Wall-clock time, monotonic time, and sleep."""

    def now(self) -> float:
        """Unix time in seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None: ...
