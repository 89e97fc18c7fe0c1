"""What came before a response, and the context that its model is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outlive.core.context.assemble import assemble
from outlive.core.context.tool_history import Names
from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json
from outlive.engine.run.compactor import Compactor
from outlive.ports.clock import Clock
from outlive.ports.history import History
from outlive.ports.ledger import Claim

# More than this is put together in a thread, so that streams do not wait for it.
MANY_ITEMS = 500
# While the storage is down: how long until the next try.
STORAGE_PAUSE = 1.0
# A database that restarts is no reason to fail a response; one that stays broken is, in the end.
STORAGE_TRIES = 300


class ContextLoader:
    """Of one claim; read once, however often its model is asked."""

    __slots__ = ("_claim", "_clock", "_compactor", "_history", "_items")

    def __init__(self, claim: Claim, history: History, compactor: Compactor | None, clock: Clock) -> None:
        self._claim = claim
        self._clock = clock
        self._history = history
        self._compactor = compactor
        self._items: list[Json] | None = None

    async def history(self) -> list[Json]:
        """What came before: in the storage, and in the memory of the connection that asks."""
        if self._items is None:
            # Whoever asks for something that is not stored is waiting for it, and can ask again.
            tries = STORAGE_TRIES if self._claim.request.store else 1
            while self._items is None:
                try:
                    self._items = await self._read()
                except StorageUnavailable:
                    tries -= 1
                    if tries == 0:
                        raise
                    await self._clock.sleep(STORAGE_PAUSE)
        return self._items

    async def context(self, own: Sequence[Json] = (), names: Names | None = None) -> list[Json]:
        """What the model gets: the history of ended turns, this response's own input, and what it holds by now."""
        request, history = self._claim.request, await self.history()
        # A thought that was broken off is thought anew.
        given = [*request.input, *filter(_is_whole, own)] if own else request.input
        if self._compactor is not None and self._compactor.concerns(history, given):
            history, given = self._compactor.open(self._claim.owner, [*history, *given]), []
        if len(history) + len(given) > MANY_ITEMS:
            return await asyncio.to_thread(assemble, history, given, names)
        return assemble(history, given, names)

    async def _read(self) -> list[Json]:
        request, place, memory = self._claim.request, self._claim.position, self._claim.memory
        if memory is not None:
            stored = await self._history.before(memory.position) if memory.position is not None else []
            return stored + memory.items
        has_history = request.previous_response_id is not None or (request.conversation is not None and place.first > 0)
        return await self._history.before(place) if has_history else []


def _is_whole(item: Json) -> bool:
    return item.get("type") != "reasoning" or item.get("status") != "incomplete"
