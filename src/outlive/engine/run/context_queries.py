"""Contexts without a run: what a model would be given, for whoever wants to count or compact it. Nothing is stored."""

from __future__ import annotations

import msgspec

from outlive.core.context import compaction
from outlive.core.context.assemble import assemble
from outlive.core.context.estimate import estimate_request
from outlive.core.errors import TooMany
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.references import find_references, resolve
from outlive.core.toolcalls.offer import without_server_tools
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.fitting import Count, fit, measure
from outlive.engine.run.runner import Route
from outlive.engine.worker import Worker
from outlive.ports.backend import ModelCall
from outlive.ports.catalog import Catalog
from outlive.ports.history import History


class ContextQueries:
    def __init__(self, route: Route, catalog: Catalog, history: History, compactor: Compactor, worker: Worker) -> None:
        self._route = route
        self._catalog = catalog
        self._history = history
        self._compactor = compactor
        self._worker = worker

    async def count(self, owner: str, request: CreateResponse, model_given: bool) -> Count:
        """How many tokens a response to this request would begin with. Without a model nobody can be asked."""
        items = assemble(self._compactor.open(owner, await self._gather(owner, request)), [])
        if not model_given:
            return Count(estimate_request(request, items), exact=False)
        backend, model = self._route(request.model)
        sent = without_server_tools(request)
        backend.check(msgspec.structs.replace(sent, input=self._compactor.stand_in(sent.input)))
        return await measure(backend, await fit(backend, ModelCall(model, sent, items)))

    async def compact(self, owner: str, request: CreateResponse) -> tuple[list[Json], Json | None]:
        """The user's messages and an item that stands for the rest; and what making it has used."""
        backend, model = self._route(request.model)
        items = self._compactor.open(owner, await self._gather(owner, request))
        told, said, compacted = compaction.split_beside(items)
        self._reserve(owner)
        try:
            summary = await self._compactor.summarise(backend, model, without_server_tools(request), told)
        finally:
            self._worker.release(owner, runs=True)
        item = self._compactor.make(owner, msgspec.structs.replace(compacted, summary=summary.text))
        return [*said, item], summary.usage

    async def _gather(self, owner: str, request: CreateResponse) -> list[Json]:
        """History and input, as they are kept."""
        self._compactor.check(owner, request.input)
        given = request.input
        if wanted := find_references(given):
            given = resolve(given, await self._catalog.stored_items(owner, wanted))
        place = await self._history.locate(
            owner, conversation=request.conversation, parent=request.previous_response_id
        )
        return [*(await self._history.before(place) if place is not None else []), *given]

    def _reserve(self, owner: str) -> None:
        if not self._worker.reserve(owner, stored=False):
            self._worker.release(owner, runs=False)
            raise TooMany("The server is busy, and a compaction cannot wait in line.")
