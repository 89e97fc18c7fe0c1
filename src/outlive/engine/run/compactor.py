"""The compactor: asks a model for a summary of a context, and seals it into a compaction item."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from outlive.core.context import compaction
from outlive.core.context.assemble import assemble
from outlive.core.context.compaction import Compacted
from outlive.core.context.window import estimate_item, truncate
from outlive.core.counts import Counts
from outlive.core.errors import BrokenSeal, InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.fold import Fold
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.ports.backend import Backend, ModelCall
from outlive.ports.clock import Clock
from outlive.ports.seal import Seal
from outlive.ports.tracing import Span, Tracer, describe_answer

# Times that an unreachable model is asked again, and that one which finds the context too long gets half of it.
RETRIES = 3
HALVINGS = 4
LEAST_SUMMARY = 256  # tokens

# Longer contents are unsealed and inflated in a thread, so that streams do not wait for it: inflated text may be a
# thousand times longer.
INLINE_CHARACTERS = 4 * 1024

T = TypeVar("T")

NO_SUMMARY = "The model gave no summary."


@dataclass(eq=False)
class Compactor:
    """Makes and opens compaction items."""

    _seal: Seal
    _ids: IdSource
    _clock: Clock
    _counts: Counts = field(default_factory=Counts)
    _tracer: Tracer = field(default_factory=Tracer)

    # -- opening

    async def open(self, owner: str, items: list[Json]) -> list[Json]:
        """Put what the compaction items of a context stand for in their place."""

        unseal = partial(self._seal.open, purpose=_purpose(owner))

        def read(item: Json) -> Compacted | None:
            try:
                return compaction.unpack(item, unseal)
            except BrokenSeal:
                return None

        return await _work(items, lambda: compaction.open_context(items, read))

    async def check(self, owner: str, items: list[Json]) -> None:
        """Raise InvalidRequest, naming the first item that claims to be ours and cannot be opened."""

        unseal = partial(self._seal.open, purpose=_purpose(owner))

        def check_all() -> None:
            for n, item in enumerate(items):
                if compaction.is_own(item):
                    try:
                        compaction.open_seal(item, unseal)
                    except BrokenSeal as error:
                        raise InvalidRequest(error.message, param=f"input[{n}].encrypted_content") from error

        await _work(items, check_all)

    def replace_ours(self, items: list[Json]) -> list[Json]:
        """Replace our compaction items by ones that any upstream can be sent, so that the rest can be checked."""
        return [compaction.prompt() if compaction.is_own(item) else item for item in items]

    # -- making

    async def make(self, owner: str, compacted: Compacted) -> Json:
        """Return the sealed compaction item."""
        seal = partial(self._seal.close, purpose=_purpose(owner))
        content = await asyncio.to_thread(compaction.pack, compacted, seal)
        return {"id": self._ids.new("cmp"), "type": "compaction", "encrypted_content": content}

    async def summarise(
        self, backend: Backend, model: str, request: CreateResponse, items: list[Json]
    ) -> tuple[str, Json | None]:
        """Ask the model for a summary of the items; return it, and its usage. Raises UpstreamFault if there is none."""
        asked = compaction.ask_summary(request, items)
        items = assemble(items, [])
        if (window := await backend.window(model)) is not None:
            asked = _limit(asked, window // 4)
            items = truncate(items, sum(map(estimate_item, items)) - window * 3 // 4)
        failures = halvings = 0
        while True:
            try:
                call = ModelCall(model, asked, [*items, compaction.prompt()], large=True)
                with self._tracer.start_model_call(request.origin, call, backend) as span:
                    summary = await self._ask(backend, msgspec.structs.replace(call, headers=span.headers), span)
            except UpstreamFault as fault:
                self._counts.count_request(backend.name, fault)
                halved = truncate(items, sum(map(estimate_item, items)) // 2)
                if fault.too_long and halvings < HALVINGS and len(halved) < len(items):
                    # What is too long to be answered may be too long to be summarised: leave out its oldest part.
                    items, halvings = halved, halvings + 1
                    asked = _limit(asked, (asked.max_output_tokens or 0) // 2)
                    continue
                failures += 1
                if not fault.retryable or failures > RETRIES:
                    raise
                await self._clock.sleep(fault.retry_after or 0.5 * 2.0 ** (failures - 1))
            else:
                self._counts.count_request(backend.name)
                return summary

    async def _ask(self, backend: Backend, call: ModelCall, span: Span) -> tuple[str, Json | None]:
        translator = backend.translator(call)
        fold = Fold({"status": "in_progress"})
        async with aclosing(backend.stream(call)) as stream:
            async for chunks in stream:
                for chunk in chunks:
                    fold.apply(translator.feed(chunk))
        drafts, ending = translator.end()
        span.note(describe_answer(ending))
        fold.apply(drafts)
        parts = (part for item in fold.output if item.get("type") == "message" for part in item.get("content") or ())
        text = "".join(part["text"] for part in parts if part.get("type") == "output_text").strip()
        if not text:
            raise UpstreamFault(NO_SUMMARY)
        return text, ending.usage


async def _work(items: list[Json], work: Callable[[], T]) -> T:
    """Do the work on these items' compaction items; in a thread if their contents are long."""
    length = sum(len(str(item.get("encrypted_content"))) for item in items if item.get("type") == "compaction")
    return await asyncio.to_thread(work) if length > INLINE_CHARACTERS else work()


def _limit(request: CreateResponse, tokens: int) -> CreateResponse:
    most = min(request.max_output_tokens or tokens, max(tokens, LEAST_SUMMARY))
    return msgspec.structs.replace(request, max_output_tokens=most)


def _purpose(owner: str) -> str:
    # Sealed per owner: another owner who gets hold of an item cannot have it opened.
    return f"compaction of {owner}"
