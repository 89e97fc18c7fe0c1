"""Reading what a model is given: the items of a thread before a place."""

from __future__ import annotations

from typing import Protocol

from outlive.core.events import Json
from outlive.ports.ledger import Position


class History(Protocol):
    async def before(self, position: Position) -> list[Json]:
        """The items of all ended turns before `place`, oldest first; one indexed range per fork."""
        ...

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        """Where a response that will not be stored would stand. The same errors as an admission, but takes no lock."""
        ...
