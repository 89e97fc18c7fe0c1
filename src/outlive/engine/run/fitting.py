"""Fitting a context to its model: truncation to the model's window, and compaction above a threshold."""

import logging
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from outlive.core.context import compaction
from outlive.core.context.window import estimate_request, truncate
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import without_server_tools
from outlive.core.usage import add_usage
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.context import ContextLoader
from outlive.engine.run.plans import Finish, MakeCall
from outlive.ports.backend import Backend, Ending, ModelCall

logger = logging.getLogger(__name__)

# Factor by which an estimate may be off: one that is further from the limit need not be counted.
DOUBT = 2.0
# Factor by which more is left out than seems to be needed, so that counting again is seldom needed.
MARGIN = 1.1
TRIES = 4
# Tokens of the window kept free for an answer whose length the request does not limit.
ANSWER_TOKENS = 4096
# Tokens above which a context is compacted, if neither the request nor the window says.
THRESHOLD = 100_000
# Fraction that is sent next of what an upstream has refused as too long; and how often.
SHRINK = 0.6
SHRINKS = 8


class Count(NamedTuple):
    tokens: int
    exact: bool


async def measure(backend: Backend, call: ModelCall) -> Count:
    """Count the tokens of a call as the upstream does, else estimate them."""
    if (tokens := await backend.count(call)) is not None:
        return Count(tokens, exact=True)
    return Count(estimate_request(call.request, call.items), exact=False)


async def fit(backend: Backend, call: ModelCall, most: int | None = None) -> ModelCall:
    """Truncate the context of a call to the model's window, or to `most` tokens, if the request allows that."""
    if call.request.truncation != "auto":
        return call
    limit = 1 << 60 if most is None else most
    if (window := await backend.window(call.model)) is not None:
        # Some servers refuse what would not fit together with the longest answer that it may get.
        answer = call.request.max_output_tokens
        kept = min(ANSWER_TOKENS, window // 4) if answer is None else min(answer, window * 3 // 4)
        limit = min(limit, window - kept)
    for _ in range(TRIES):
        estimate = estimate_request(call.request, call.items)
        if estimate * DOUBT <= limit:
            break
        tokens = (await measure(backend, call)).tokens
        if tokens <= limit:
            break
        # Single items can only be estimated, so the excess is converted to the scale of the estimate.
        shorter = truncate(call.items, int((tokens - limit) * estimate / tokens * MARGIN) + 1)
        if len(shorter) == len(call.items):
            break
        call = msgspec.structs.replace(call, items=shorter)
    return call


@dataclass(eq=False)
class Fitting:
    """Fits the contexts of one run."""

    _live: LiveResponse
    _committer: Committer
    _context: ContextLoader
    _compactor: Compactor
    _backend: Backend
    _model: str
    _sent: ModelCall | None = None
    _most: int | None = None  # tokens; learnt from the upstream's refusals
    _shrinks: int = 0

    async def fit(self, call: ModelCall) -> ModelCall:
        """Truncate a call to the model's window, if the request allows that."""
        self._sent = await fit(self._backend, call, self._most)
        return self._sent

    def can_shrink(self, fault: UpstreamFault) -> bool:
        """Return True if a shorter context is worth a try: the upstream, whose window is unknown, refused this one."""
        call = self._sent
        if call is None or not fault.too_long or call.request.truncation != "auto" or self._shrinks >= SHRINKS:
            return False
        self._shrinks += 1
        self._most = int(estimate_request(call.request, call.items) * SHRINK)
        return len(truncate(call.items, 1)) < len(call.items)

    async def compact(self, make_call: MakeCall) -> bool:
        """Compact the context if it is above the threshold, and emit that. Returns True if it did. If no summary can be
        had, the model is asked with the context as it is: that may still fit."""
        live, threshold = self._live, self._live.claim.request.context_management
        if threshold is None:
            return False
        await live.flush()
        if live.tail.lost or next(live.fold.open_items(), None) is not None:
            return False
        call = await make_call(None)
        if not threshold:
            window = await self._backend.window(self._model)
            threshold = THRESHOLD if window is None else window * 3 // 4
        parts = compaction.split(call.items, min(compaction.KEPT_TOKENS, threshold // 4))
        tokens = estimate_request(call.request, call.items)
        if parts is not None and threshold <= tokens * DOUBT and tokens <= threshold * DOUBT:
            tokens = (await measure(self._backend, call)).tokens
        if parts is None or tokens <= threshold:
            return False
        try:
            item = await self._make_item(call.request, *parts)
        except UpstreamFault as fault:
            logger.warning("compaction failed", extra={"response_id": live.lease.response_id, "status": fault.status})
            return False
        self._committer.submit(live, compaction.show(item, len(live.fold.output)))
        await live.flush()
        return True

    async def compact_all(self) -> Finish:
        """Compact the whole context, and end the response with that. Raises UpstreamFault."""
        claim = self._live.claim
        items = [*(await self._context.history()), *claim.request.input]
        opened = await self._compactor.open(claim.owner, items)
        summarised, compacted = compaction.split_all(opened, compaction.KEPT_TOKENS)
        item = await self._make_item(without_server_tools(claim.request), summarised, compacted)
        return Finish(compaction.show(item, 0), Ending("completed"))

    async def _make_item(self, request: CreateResponse, items: list[Json], compacted: compaction.Compacted) -> Json:
        live, compactor = self._live, self._compactor
        summary, usage = await compactor.summarise(self._backend, self._model, request, items)
        await self._committer.save_checkpoint(live, compaction=add_usage(live.checkpoint.compaction, usage))
        return await compactor.make(live.claim.owner, msgspec.structs.replace(compacted, summary=summary))
