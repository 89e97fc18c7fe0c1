"""The history: reads the items of a thread before a position, for a model's context."""

from __future__ import annotations

from typing import Protocol

from outlive.core.events import Json
from outlive.ports.ledger import Position


class History(Protocol):
    async def before(self, position: Position) -> list[Json]:
        """Read the items of all ended turns before a position, oldest first; one indexed range per fork."""

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        """Find the position of a response that will not be stored. Raises as an admission does, but takes no lock."""
