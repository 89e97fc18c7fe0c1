"""An upstream that speaks Anthropic's Messages API over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial
from typing import NoReturn

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.request import check, count_body, render
from outlive.dialects.anthropic.translator import AnthropicTranslator
from outlive.dialects.anthropic.whole_answer import to_events
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.http1 import Connection, Pool
from outlive.dialects.transport.stream import tell
from outlive.dialects.transport.token_counter import TokenCounter, read_number
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, OnChunks, Upstream

# The oldest version there is, which the API promises to keep: other servers that speak this dialect know it too, and
# it still has `temperature` and `top_p`. The settings' own header wins.
VERSION = {"anthropic-version": "2023-06-01"}

_ALL = {"limit": "1000"}  # of a list, which would come in pages
_MANY_ITEMS = 500
# Once the reason to stop is known, the answer is whole.
_STOPPED = re.compile(rb'"stop_reason"\s*:\s*"')
_LAST = re.compile(rb'"type"\s*:\s*"message_stop"')
# How the API says that it will not have a thought back: from another conversation, altered, or out of its place.
_THOUGHT = re.compile(r"thinking.{0,20}\bblock|block.{0,20}thinking|signature", re.I)


class AnthropicBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    stepwise = False
    background_runs: BackgroundRuns | None = None

    def __init__(self, upstream: Upstream, pool: Pool, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._endpoint = Endpoint(upstream, pool, VERSION)
        self._counting = TokenCounter(self._endpoint)
        self._ids = ids
        self._url = self._endpoint.url("messages")

    def check(self, request: CreateResponse) -> None:
        check(request)

    def translator(self, call: ModelCall) -> AnthropicTranslator:
        return AnthropicTranslator(call, self._ids)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        return tell(self._endpoint, partial(self._ask, call), on_chunks, whole=to_events, last=_LAST, enough=_STOPPED)

    async def pass_through(self, body: Json) -> NoReturn:
        raise InvalidRequest(
            f"The model '{body.get('model')}' cannot be used on /v1/chat/completions: its server ({self.name}) speaks "
            "Anthropic's Messages API. Use /v1/responses.",
            param="model",
            code="unsupported_model",
        )

    async def models(self) -> list[Json]:
        return await self._endpoint.models(**_ALL)

    async def count(self, call: ModelCall) -> int | None:
        body, _ = await asyncio.to_thread(render, call, self._upstream)
        return read_number(await self._counting.ask("messages/count_tokens", count_body(body)), "input_tokens")

    async def window(self, model: str) -> int | None:
        return await self._counting.window(model, **_ALL)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, call: ModelCall) -> Connection:
        """The head of an answer that is no refusal.

        Thoughts of earlier turns are sent back, for the model reasons better with them. But the API takes one only
        where it was thought, with the same instructions and tools before it, and both may change with every request
        here. When it will not have them, the question is put once more without: an answer beats a memory.
        """
        data, has_thoughts = await self._render(call)
        try:
            return await self._endpoint.post(self._url, data)
        except UpstreamFault as fault:
            if not has_thoughts or fault.status != 400 or not _THOUGHT.search(fault.message):
                raise
        data, _ = await self._render(call, with_thoughts=False)
        return await self._endpoint.post(self._url, data)

    async def _render(self, call: ModelCall, *, with_thoughts: bool = True) -> tuple[bytes, bool]:
        """The request's body, and whether there are thoughts in it; a long context is put together in a thread, so
        that streams do not wait for it."""

        def encode() -> tuple[bytes, bool]:
            body, has_thoughts = render(call, self._upstream, with_thoughts=with_thoughts)
            return msgspec.json.encode(body), has_thoughts

        return await asyncio.to_thread(encode) if len(call.items) > _MANY_ITEMS else encode()
