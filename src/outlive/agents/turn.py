"""What a durable run knows about one of its model turns; plain durable models have none."""

from __future__ import annotations

from typing import Protocol

from openai.types.responses import Response


class Turn(Protocol):
    """One model turn of one run."""

    @property
    def key(self) -> str:
        """The idempotency key under which it is submitted."""

    async def find(self) -> str | None:
        """The response that this turn was submitted as, by this process or one before it."""

    async def note(self, response_id: str) -> None:
        """Record which response this turn is, the moment that is known."""

    def end(self, response: Response) -> None:
        """It completed; what comes next is the next turn."""
