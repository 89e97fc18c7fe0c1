"""The context loader: reads the history of a response once, and assembles the context that its model is given."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from outlive.core.context.assemble import Names, finish_calls
from outlive.core.context.assemble import assemble as assemble_context
from outlive.core.context.compaction import is_own
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.budget import ByteBudget
from outlive.engine.run.compactor import Compactor
from outlive.engine.slots import SMALL_INPUT
from outlive.engine.waiting import keep_trying
from outlive.ports.clock import Clock
from outlive.ports.database import LoadedItems
from outlive.ports.ledger import Claim, Position
from outlive.ports.storage import History

# Bytes of histories that each owner's runs may hold at once; a run that needs more waits. Short ones are not counted.
OWNER_BYTES = 128 * 1024 * 1024
# Bytes of a history that are read at first, if it is longer, and at most.
STEPS = (1024 * 1024, 8 * 1024 * 1024, 64 * 1024 * 1024)
TOO_LONG = (
    f'The history has more than {STEPS[-1]:,} bytes. Send `truncation: "auto"` or `context_management`, compact it, '
    "or begin a new conversation."
)
# A longer context is assembled in a thread, so that streams do not wait for it.
MANY_ITEMS = 500
# Tries while the storage is down. A database that restarts must not fail a response; one that stays down may.
STORAGE_TRIES = 300

T = TypeVar("T")


class ContextLoader(msgspec.Struct, eq=False):
    """Loads the context of one claim."""

    _claim: Claim
    _history: History
    _compactor: Compactor
    _clock: Clock
    _budget: ByteBudget
    _room: contextlib.ExitStack | None = None  # of a long history
    _items: list[Json] | None = None

    @property
    def is_large(self) -> bool:
        """True if the request, or the history that was read, is large."""
        return self._room is not None or self._claim.size > SMALL_INPUT

    def close(self) -> None:
        """Give back the room that a long history took."""
        self._items = None
        if self._room is not None:
            self._room.close()

    async def history(self) -> list[Json]:
        """Return the items of ended turns: from the storage, and from the memory of the connection that asks."""
        if self._items is None:
            claim, request, memory = self._claim, self._claim.request, self._claim.memory
            in_conversation = request.conversation is not None and claim.position.first > 0
            continues = request.previous_response_id is not None or in_conversation
            position = memory.position if memory is not None else claim.position if continues else None
            items = finish_calls(claim.history) if claim.history else []
            if position is not None and claim.history is None:
                read = partial(read_history, self._history, position, self._budget, claim.owner, request)
                items, self._room = await self._keep_trying(read)
            self._items = items if memory is None else items + memory.items
        return self._items

    async def find_lists(self) -> list[Json]:
        """Return the lists of tools in the history that this server made itself: one that a client sent may offer what
        the server of the tools does not."""
        ids = [item["id"] for item in await self.history() if item.get("type") == "mcp_list_tools"]
        return await self._keep_trying(lambda: self._history.find_outputs(self._claim.owner, ids)) if ids else []

    async def _keep_trying(self, read: Callable[[], Awaitable[T]]) -> T:
        # The client of a response that is not stored waits for it, and can ask again.
        return await keep_trying(read, self._clock, STORAGE_TRIES if self._claim.request.store else 1)

    async def assemble(self, own: Sequence[Json] = (), names: Names | None = None) -> list[Json]:
        """Return the context: the history of ended turns, the response's own input, and its own output so far."""
        request, history = self._claim.request, await self.history()
        # Reasoning that was cut off is left out: the model reasons anew.
        whole = [item for item in own if item.get("type") != "reasoning" or item.get("status") != "incomplete"]
        items = [*history, *finish_calls(request.input), *whole]
        if "compaction" in [item.get("type") for item in items]:
            items = await self._compactor.open(self._claim.owner, items)
        if len(items) > MANY_ITEMS:
            return await asyncio.to_thread(assemble_context, items, (), names)
        return assemble_context(items, (), names)


async def read_history(
    history: History, position: Position, budget: ByteBudget, owner: str, request: CreateResponse
) -> tuple[list[Json], contextlib.ExitStack | None]:
    """Read the items before a position, and hold room for them if they are long (else None), until the stack that is
    returned is closed. Calls are as completed: a turn keeps none that was cut off, so unfinished ones are the caller's
    own. Of a history that is too long, only the newest part is read if the request allows that, or if a compaction item
    in it stands for the rest. Raises UpstreamFault otherwise."""
    loaded = await history.before(position, STEPS[0])
    if loaded.whole:
        return finish_calls(loaded.items), None
    with contextlib.ExitStack() as room:
        for most in STEPS[1:]:
            room.close()  # to hold some and wait for more could wait for ever
            loaded = LoadedItems([], False)
            room.callback(budget.release, owner, await budget.acquire(owner, most))
            loaded = await history.before(position, most)
            if loaded.whole:
                break
        shortens = request.truncation == "auto" or request.context_management is not None or request.compacts
        if not loaded.whole and not shortens and not any(map(is_own, loaded.items)):
            del loaded  # the error holds this frame
            raise UpstreamFault(TOO_LONG, code="invalid_prompt", retryable=False, too_long=True)
        held = room.pop_all()
    return finish_calls(loaded.items), held
