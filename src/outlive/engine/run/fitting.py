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
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.context import ContextLoader
from outlive.engine.run.log import RunLog
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
    tokens = await backend.count(call)
    if tokens is not None:
        return Count(tokens, exact=True)
    return Count(estimate_request(call.request, call.items), exact=False)


async def fit(backend: Backend, call: ModelCall, most: int | None = None) -> ModelCall:
    """Truncate the context of a call to the model's window, or to `most` tokens, if the request allows that."""
    if call.request.truncation != "auto":
        return call
    window = await backend.window(call.model)
    limit = min(each for each in (most, _limit(call.request, window), 1 << 60) if each is not None)
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


def _limit(request: CreateResponse, window: int | None) -> int | None:
    if window is None:
        return None
    if request.max_output_tokens is None:
        return window - min(ANSWER_TOKENS, window // 4)
    # Some servers refuse what would not fit together with the longest answer that it may get.
    return window - min(request.max_output_tokens, window * 3 // 4)


@dataclass(eq=False)
class Fitting:
    """Fits the contexts of one run."""

    _log: RunLog
    _context: ContextLoader
    _compactor: Compactor
    _backend: Backend
    _model: str
    _sent: ModelCall | None = None
    _most: int | None = None  # tokens; learnt from the upstream's refusals
    _shrinks: int = 0

    def __post_init__(self) -> None:
        self._request = self._log.claim.request

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
        if self._request.context_management is None:
            return False
        await self._log.flush()
        if self._log.is_lost or next(self._log.fold.open_items(), None) is not None:
            return False
        call = await make_call(None)
        threshold = await self._threshold()
        parts = compaction.split(call.items, min(compaction.KEPT_TOKENS, threshold // 4))
        if parts is None or not await self._is_longer(call, threshold):
            return False
        try:
            item = await self._make_item(call.request, *parts)
        except UpstreamFault as fault:
            logger.warning("compaction failed", extra={"response_id": self._log.response_id, "status": fault.status})
            return False
        self._log.emit(compaction.show(item, len(self._log.fold.output)))
        await self._log.flush()
        return True

    async def compact_all(self) -> Finish:
        """Compact the whole context, and end the response with that. Raises UpstreamFault."""
        items = [*(await self._context.history()), *self._request.input]
        opened = await self._compactor.open(self._log.claim.owner, items)
        summarised, compacted = compaction.split_all(opened, compaction.KEPT_TOKENS)
        item = await self._make_item(without_server_tools(self._request), summarised, compacted)
        return Finish(compaction.show(item, 0), Ending("completed"))

    async def _make_item(self, request: CreateResponse, items: list[Json], compacted: compaction.Compacted) -> Json:
        log, summary = self._log, await self._compactor.summarise(self._backend, self._model, request, items)
        await log.save_checkpoint(compaction=add_usage(log.checkpoint.compaction, summary.usage))
        return await self._compactor.make(log.claim.owner, msgspec.structs.replace(compacted, summary=summary.text))

    async def _threshold(self) -> int:
        if self._request.context_management:
            return self._request.context_management
        window = await self._backend.window(self._model)
        return THRESHOLD if window is None else window * 3 // 4

    async def _is_longer(self, call: ModelCall, threshold: int) -> bool:
        estimate = estimate_request(call.request, call.items)
        if estimate * DOUBT < threshold or estimate > threshold * DOUBT:
            return estimate > threshold
        return (await measure(self._backend, call)).tokens > threshold
