"""Contexts without a run: count the tokens that a model would be given, or compact them. Nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from outlive.core.context import compaction
from outlive.core.context.assemble import assemble, finish_calls
from outlive.core.context.window import estimate_request
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.items import find_references, resolve
from outlive.core.toolcalls import without_server_tools
from outlive.engine.run.context import read_history
from outlive.engine.run.fitting import Count, fit, measure
from outlive.engine.run.run import RunServices
from outlive.engine.worker import Worker
from outlive.ports.backend import ModelCall
from outlive.ports.storage import Storage


class ContextQueries:
    """Assembles contexts for questions about them."""

    def __init__(self, storage: Storage, services: RunServices, worker: Worker) -> None:
        self._catalog = storage.catalog
        self._history = storage.history
        self._route = services.route
        self._compactor = services.compactor
        self._contexts = services.contexts
        self._worker = worker

    async def count(self, owner: str, request: CreateResponse, model_given: bool) -> Count:
        """Count the tokens that a response to this request would begin with; estimate them if no model was given."""
        with contextlib.ExitStack() as room:
            return await self._count(await self._open(owner, request, room), request, model_given)

    async def _count(self, context: list[Json], request: CreateResponse, model_given: bool) -> Count:
        items = await asyncio.to_thread(assemble, context, [])
        if not model_given:
            return Count(estimate_request(request, items), exact=False)
        backend, model = self._route(request.model)
        sent = without_server_tools(request)
        backend.check(msgspec.structs.replace(sent, input=self._compactor.replace_ours(sent.input)))
        return await measure(backend, await fit(backend, ModelCall(model, sent, items)))

    async def compact(self, owner: str, request: CreateResponse) -> tuple[list[Json], Json | None]:
        """Return the user's messages and a compaction item in place of the rest, and the usage of making it."""
        backend, model = self._route(request.model)
        with self._worker.hold_slot(owner, "a compaction"), contextlib.ExitStack() as room:
            items = await self._open(owner, msgspec.structs.replace(request, compacts=True), room)
            summarised, kept, compacted = await asyncio.to_thread(compaction.split_beside, items)
            summary = await self._compactor.summarise(backend, model, without_server_tools(request), summarised)
        item = await self._compactor.make(owner, msgspec.structs.replace(compacted, summary=summary.text))
        return [*kept, item], summary.usage

    async def _open(self, owner: str, request: CreateResponse, room: contextlib.ExitStack) -> list[Json]:
        return await self._compactor.open(owner, await self._gather(owner, request, room))

    async def _gather(self, owner: str, request: CreateResponse, room: contextlib.ExitStack) -> list[Json]:
        """Return history and input, as stored. `room` gives back what a long history takes."""
        await self._compactor.check(owner, request.input)
        given = request.input
        if wanted := find_references(given):
            given = resolve(given, await self._catalog.stored_items(owner, wanted))
        position = await self._history.locate(
            owner, conversation=request.conversation, parent=request.previous_response_id
        )
        if position is None:
            return finish_calls(given)
        past, taken = await read_history(self._history, position, self._contexts, owner, request)
        room.push(taken)
        return [*past, *finish_calls(given)]
