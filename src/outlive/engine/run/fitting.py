"""Fitting a context to its model: what does not fit into the window is left out, what is too much is compacted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from outlive.core.context import compaction
from outlive.core.context.estimate import estimate_request
from outlive.core.context.truncation import truncate
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls.offer import without_server_tools
from outlive.core.usage import add_usage
from outlive.engine.run.compactor import Compactor
from outlive.ports.backend import Backend, Ending, ModelCall

if TYPE_CHECKING:
    from outlive.engine.run.run import MakeCall, Run

log = logging.getLogger(__name__)

# By how much an estimate may be off: what it says with this much to spare need not be counted.
DOUBT = 2.0
# What is left out beyond what seems to be needed, so that counting again is seldom needed.
MARGIN = 1.1
TRIES = 4
# The room that an answer gets in the window where nobody has said how long it may be.
ANSWER_TOKENS = 4096
# Where neither the request nor the window says when to compact.
THRESHOLD = 100_000
# Of what an upstream has refused as too long, how much it is sent next; and how often.
SHRINK = 0.6
SHRINKS = 8


class Count(NamedTuple):
    tokens: int
    exact: bool


async def measure(backend: Backend, call: ModelCall) -> Count:
    """How many tokens a call has: as the upstream counts them, else by estimate."""
    tokens = await backend.count(call)
    if tokens is not None:
        return Count(tokens, exact=True)
    return Count(estimate_request(call.request, call.items), exact=False)


async def fit(backend: Backend, call: ModelCall, most: int | None = None) -> ModelCall:
    """The call with as much of its context as the model can hold, or as `most` tokens, if the request wants that."""
    if call.request.truncation != "auto":
        return call
    window = await backend.window(call.model)
    room = min(limit for limit in (most, _room(call.request, window), 1 << 60) if limit is not None)
    for _ in range(TRIES):
        estimate = estimate_request(call.request, call.items)
        if estimate * DOUBT <= room:
            break
        tokens = (await measure(backend, call)).tokens
        if tokens <= room:
            break
        # Of a single item only the estimate can be had, so the excess is told in its measure.
        shorter = truncate(call.items, int((tokens - room) * estimate / tokens * MARGIN) + 1)
        if len(shorter) == len(call.items):
            break
        call = msgspec.structs.replace(call, items=shorter)
    return call


def _room(request: CreateResponse, window: int | None) -> int | None:
    if window is None:
        return None
    if request.max_output_tokens is None:
        return window - min(ANSWER_TOKENS, window // 4)
    # Some servers refuse what would not fit together with the longest answer that it may get.
    return window - min(request.max_output_tokens, window * 3 // 4)


class Fitting:
    """Fits the contexts of one run."""

    def __init__(self, run: Run, compactor: Compactor, backend: Backend, model: str) -> None:
        self._run = run
        self._compactor = compactor
        self._backend = backend
        self._model = model
        self._asked: ModelCall | None = None
        self._most: int | None = None  # tokens; what the upstream has taught us
        self._shrinks = 0

    async def fit(self, call: ModelCall) -> ModelCall:
        self._asked = await fit(self._backend, call, self._most)
        return self._asked

    def can_shrink(self, fault: UpstreamFault) -> bool:
        """Whether to ask again with less, after an upstream whose window nobody knows has found it too long."""
        call = self._asked
        if call is None or not fault.too_long or call.request.truncation != "auto" or self._shrinks >= SHRINKS:
            return False
        self._shrinks += 1
        self._most = int(estimate_request(call.request, call.items) * SHRINK)
        return len(truncate(call.items, 1)) < len(call.items)

    async def compact(self, make: MakeCall) -> None:
        """Compact the context if it is above the threshold, and show that. When it cannot be done, the model is asked
        with the context as it is: that may still fit."""
        run = self._run
        if run.claim.request.context_management is None:
            return
        await run.committer.settle(run.live)
        if run.live.lost or next(run.live.fold.open_items(), None) is not None:
            return
        call = await make(None)
        parts = compaction.split(call.items, await self._keep())
        if parts is None or not await self._is_over(call):
            return
        told, compacted = parts
        try:
            item = await self._make_item(call.request, told, compacted)
        except UpstreamFault as fault:
            log.warning("a context was not compacted: %s", fault.message)
            return
        run.committer.submit(run.live, compaction.show(item, len(run.live.fold.output)))
        await run.committer.settle(run.live)
        run.begin_step()

    async def compact_all(self) -> None:
        """Compact what there is, and end the response with that."""
        run = self._run
        past = [*(await run.history()), *run.claim.request.input]
        told, compacted = compaction.split_all(self._compactor.open(run.claim.owner, past), compaction.KEPT_TOKENS)
        try:
            item = await self._make_item(without_server_tools(run.claim.request), told, compacted)
        except UpstreamFault as fault:
            await run.give_up(fault)
            return
        await run.finish(compaction.show(item, 0), Ending("completed"))

    async def _make_item(self, request: CreateResponse, told: list[Json], compacted: compaction.Compacted) -> Json:
        run = self._run
        summary = await self._compactor.summarise(self._backend, self._model, request, told)
        await run.note(compaction=add_usage(run.notes.compaction, summary.usage))
        return self._compactor.make(run.claim.owner, msgspec.structs.replace(compacted, summary=summary.text))

    async def _threshold(self) -> int:
        if self._run.claim.request.context_management:
            return self._run.claim.request.context_management
        window = await self._backend.window(self._model)
        return THRESHOLD if window is None else window * 3 // 4

    async def _keep(self) -> int:
        return min(compaction.KEPT_TOKENS, await self._threshold() // 4)

    async def _is_over(self, call: ModelCall) -> bool:
        threshold = await self._threshold()
        estimate = estimate_request(call.request, call.items)
        if estimate * DOUBT < threshold or estimate > threshold * DOUBT:
            return estimate > threshold
        return (await measure(self._backend, call)).tokens > threshold
