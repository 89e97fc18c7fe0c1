"""A session as a durable run sees it: as long as it was when the run began, plus what the run has added so far."""

from __future__ import annotations

from typing import Any

from agents import TResponseInputItem
from agents.memory import Session
from agents.memory.session import SessionABC

from outlive.agents.journal import Journal


class ReplayedSession(SessionABC):
    """A restarted run does everything again from its beginning, and must not find, or add, what it added before.

    Items are told apart by their place: what the run adds first goes where it added its first item the last time. So a
    session belongs to one run until that run is over.
    """

    def __init__(self, inner: Session, journal: Journal, name: str) -> None:
        self._inner = inner
        self._journal = journal
        self._name = name
        self._items: list[TResponseInputItem] | None = None
        self._end = 0
        self.session_id = inner.session_id
        self.session_settings = getattr(inner, "session_settings", None)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        items = await self._load()
        seen = items[: self._end]
        return seen if limit is None else seen[max(0, len(seen) - limit) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        kept = await self._load()
        new = items[len(kept) - self._end :] if self._end < len(kept) else items
        if new:
            await self._inner.add_items(new)
            kept.extend(new)
        self._end += len(items)

    async def pop_item(self) -> TResponseInputItem | None:
        items = await self._load()
        if self._end == 0:
            return None
        self._end -= 1
        if self._end == len(items) - 1:
            items.pop()
            return await self._inner.pop_item()
        return items[self._end]

    async def clear_session(self) -> None:
        await self._inner.clear_session()
        self._items, self._end = [], 0

    async def _load(self) -> list[TResponseInputItem]:
        if self._items is None:
            items: list[Any] = list(await self._inner.get_items())
            began = self._journal.length(self._name)
            if began is None:
                await self._journal.record_length(self._name, len(items))
                began = self._journal.length(self._name)
            self._items, self._end = items, min(began or 0, len(items))
        return self._items
