"""The context loader: reads the history of a response once, and assembles the context that its model is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from outlive.core.context.assemble import Names, finish_calls
from outlive.core.context.assemble import assemble as assemble_context
from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.log import STORAGE_PAUSE
from outlive.ports.clock import Clock
from outlive.ports.ledger import Claim
from outlive.ports.storage import History

# A longer context is assembled in a thread, so that streams do not wait for it.
MANY_ITEMS = 500
# Tries while the storage is down. A database that restarts must not fail a response; one that stays down may.
STORAGE_TRIES = 300


class ContextLoader:
    """Loads the context of one claim."""

    __slots__ = ("_claim", "_clock", "_compactor", "_history", "_items")

    def __init__(self, claim: Claim, history: History, compactor: Compactor, clock: Clock) -> None:
        self._claim = claim
        self._clock = clock
        self._history = history
        self._compactor = compactor
        self._items: list[Json] | None = None

    async def history(self) -> list[Json]:
        """Return the items of ended turns: from the storage, and from the memory of the connection that asks."""
        if self._items is None:
            self._items = await self._keep_trying(self._read)
        return self._items

    async def find_lists(self) -> list[Json]:
        """Return the lists of tools in the history that this server made itself: one that a client sent may offer what
        the server of the tools does not."""
        ids = [item["id"] for item in await self.history() if item.get("type") == "mcp_list_tools"]
        if not ids:
            return []
        return await self._keep_trying(lambda: self._history.find_outputs(self._claim.owner, ids))

    async def _keep_trying(self, read: Callable[[], Awaitable[list[Json]]]) -> list[Json]:
        # The client of a response that is not stored waits for it, and can ask again.
        tries = STORAGE_TRIES if self._claim.request.store else 1
        while True:
            try:
                return await read()
            except StorageUnavailable:
                tries -= 1
                if tries == 0:
                    raise
                await self._clock.sleep(STORAGE_PAUSE)

    async def assemble(self, own: Sequence[Json] = (), names: Names | None = None) -> list[Json]:
        """Return the context: the history of ended turns, the response's own input, and its own output so far."""
        request, history = self._claim.request, await self.history()
        # Reasoning that was cut off is left out: the model reasons anew.
        given = [*finish_calls(request.input), *filter(_is_whole, own)]
        if self._compactor.is_needed(history, given):
            history, given = await self._compactor.open(self._claim.owner, [*history, *given]), []
        if len(history) + len(given) > MANY_ITEMS:
            return await asyncio.to_thread(assemble_context, history, given, names)
        return assemble_context(history, given, names)

    async def _read(self) -> list[Json]:
        request, position, memory = self._claim.request, self._claim.position, self._claim.memory
        if memory is not None:
            stored = await self._history.before(memory.position) if memory.position is not None else []
            return stored + memory.items
        has_history = request.previous_response_id is not None or (
            request.conversation is not None and position.first > 0
        )
        return await self._history.before(position) if has_history else []


def _is_whole(item: Json) -> bool:
    return item.get("type") != "reasoning" or item.get("status") != "incomplete"
