"""Requests that store nothing: count the tokens of a context, compact it, pass a chat completion on, list models."""

import asyncio
import contextlib
from dataclasses import dataclass
from secrets import token_hex

import msgspec

from outlive.core.context import compaction
from outlive.core.context.assemble import assemble, finish_calls
from outlive.core.context.window import estimate_request
from outlive.core.errors import InvalidRequest, NotFound, UpstreamFault
from outlive.core.events import Json
from outlive.core.origin import Origin
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.items import find_references, resolve
from outlive.core.toolcalls import without_server_tools
from outlive.core.usage import UsageRecord, count_tokens
from outlive.engine.policies import Policies
from outlive.engine.run.context import read_history
from outlive.engine.run.fitting import Count, fit, measure
from outlive.engine.run.run import RunServices
from outlive.engine.usage import UsageMeter
from outlive.engine.worker import Worker
from outlive.ports.backend import Backends, ModelCall, PassedAnswer
from outlive.ports.storage import Storage


@dataclass(eq=False)
class ContextQueries:
    """Answers requests that make no response."""

    _storage: Storage
    _services: RunServices
    _worker: Worker
    _policies: Policies
    _backends: Backends
    _meter: UsageMeter

    async def count(self, owner: str, request: CreateResponse, model_given: bool) -> Count:
        """Count the tokens that a response to this request would begin with; estimate them if no model was given."""
        if model_given:
            self._policies.check_model(owner, request.model)
        with contextlib.ExitStack() as room:
            items = await asyncio.to_thread(assemble, await self._open(owner, request, room), [])
            if not model_given:
                return Count(estimate_request(request, items), exact=False)
            backend, model = self._services.route(request.model)
            sent = without_server_tools(request)
            backend.check(msgspec.structs.replace(sent, input=self._services.compactor.replace_ours(sent.input)))
            return await measure(backend, await fit(backend, ModelCall(model, sent, items)))

    async def compact(self, owner: str, request: CreateResponse) -> tuple[list[Json], Json | None]:
        """Return the user's messages and a compaction item in place of the rest, and the usage of making it."""
        self._policies.check_model(owner, request.model)
        await self._policies.admit(owner)
        (backend, model), compactor = self._services.route(request.model), self._services.compactor
        async with self._worker.hold_slot(owner, "a compaction"):
            with contextlib.ExitStack() as room:
                items = await self._open(owner, msgspec.structs.replace(request, compacts=True), room)
                summarised, kept, compacted = await asyncio.to_thread(compaction.split_beside, items)
                summary, usage = await compactor.summarise(backend, model, without_server_tools(request), summarised)
        item = await compactor.make(owner, msgspec.structs.replace(compacted, summary=summary))
        self.count_usage(owner, request.model, usage)
        return [*kept, item], usage

    def count_usage(self, owner: str, model: str, usage: Json | None, estimated: tuple[int, int] = (0, 0)) -> None:
        """Count usage that no response has, as reported or estimated."""
        record = UsageRecord(
            response_id="",
            owner=owner,
            model=model,
            upstream=self._services.route(model)[0].name,
            ended_at=self._services.clock.now(),
            status="completed",
            tokens=count_tokens(usage, usage, estimated),
        )
        self._meter.count(record, False)

    async def list_models(self, owner: str) -> list[Json]:
        """List the models that an owner may use, each under the first of its names that the owner may use."""
        listed = []
        for model, names in await self._name_models():
            listed += [{**model, "id": name} for name in names if self._policies.may_use(owner, name)][:1]
        return listed

    async def find_model(self, owner: str, name: str) -> Json:
        """Return a model by any of its names. Raises NotFound."""
        for model, names in await self._name_models():
            if name in names and self._policies.may_use(owner, name):
                return {**model, "id": name}
        raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")

    async def _name_models(self) -> list[tuple[Json, list[str]]]:
        """Return all models, each with the names that lead to it: `NAME/model` first if there are several upstreams."""
        backends = list(self._backends.by_name.values())
        lists = await asyncio.gather(*(backend.models() for backend in backends))
        several = sum(not backend.stepwise for backend in backends) > 1
        found = []
        for backend, models in zip(backends, lists, strict=True):
            for model in models:
                name = model["id"]
                names = [f"{backend.name}/{name}"] if several and not backend.stepwise else [name]
                with contextlib.suppress(InvalidRequest):  # several upstreams have such an alias
                    names += [name] if name not in names and self._services.route(name)[0] is backend else []
                found.append((model, names))
        return found

    async def pass_through(self, owner: str, body: Json, origin: Origin) -> PassedAnswer:
        """Send a Chat Completions request to its upstream as it is."""
        self._policies.check_model(owner, body["model"])
        rate = await self._policies.admit(owner)
        backend, model = self._services.route(body["model"])
        try:
            answer = await backend.pass_through({**body, "model": model}, origin.headers(token_hex(4)))
        except UpstreamFault as fault:
            self._services.counts.count_request(backend.name, fault)
            raise
        self._services.counts.count_request(backend.name, status=answer.status)
        if rate is not None:
            answer.headers.update(rate.headers())  # in place of the upstream's: the owner's own limits are what counts
        return answer

    async def _open(self, owner: str, request: CreateResponse, room: contextlib.ExitStack) -> list[Json]:
        """Return history and input, with compaction items opened. `room` gives back what a long history takes."""
        services, history = self._services, self._storage.history
        await services.compactor.check(owner, request.input)
        past: list[Json] = []
        given = request.input
        if wanted := find_references(given):
            given = resolve(given, await self._storage.catalog.stored_items(owner, wanted))
        position = await history.locate(owner, conversation=request.conversation, parent=request.previous_response_id)
        if position is not None:
            past, taken = await read_history(history, position, services.contexts, owner, request)
            if taken is not None:
                room.push(taken)
        return await services.compactor.open(owner, [*past, *finish_calls(given)])
