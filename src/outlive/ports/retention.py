"""Retention: deletes what has expired and erases what is deleted, for the sweeper."""

from __future__ import annotations

from typing import Protocol


class Retention(Protocol):
    async def expire(self, *, responses_before: float | None, conversations_before: float | None, limit: int) -> int:
        """Delete what was last used before these times. Returns the number of deleted things."""
        ...

    async def erase(self, limit: int) -> int:
        """Erase the bytes of some deleted things that no unfinished run needs. Returns 0 when nothing is left."""
        ...

    async def forget_keys(self, before: float) -> None:
        """Erase Idempotency-Keys and records of unanswered creates that are older."""
        ...

    async def scrub(self) -> None:
        """Make sure that erased bytes are in no file any more."""
        ...
