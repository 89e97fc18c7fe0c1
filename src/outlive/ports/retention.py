"""Forgetting: what the sweeper asks of the database."""

from __future__ import annotations

from typing import Protocol


class Retention(Protocol):
    async def expire(self, *, responses_before: float | None, conversations_before: float | None, limit: int) -> int:
        """Hide what was last used before then; how many were hidden."""
        ...

    async def erase(self, limit: int) -> int:
        """Remove the bytes of hidden things that no unfinished run needs, or a part of them; 0 when nothing is left."""
        ...

    async def forget_keys(self, before: float) -> None:
        """Forget Idempotency-Keys and unanswered creations older than that."""
        ...

    async def scrub(self) -> None:
        """See to it that erased bytes are in no file any more."""
        ...
