"""An upstream that speaks Chat Completions over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.request import check, render
from outlive.dialects.chat.translator import ChatTranslator
from outlive.dialects.chat.whole_answer import to_chunk
from outlive.dialects.transport.endpoint import CHAT_PATH, Endpoint, RelayedAnswer
from outlive.dialects.transport.http1 import Connection, Pool
from outlive.dialects.transport.stream import tell
from outlive.dialects.transport.token_counter import TokenCounter
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, OnChunks, Upstream

_MANY_ITEMS = 500

# After it only the usage can be missing, and an answer is whole without that.
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class ChatBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    stepwise = False
    background_runs: BackgroundRuns | None = None

    def __init__(self, upstream: Upstream, pool: Pool, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._endpoint = Endpoint(upstream, pool)
        self._counting = TokenCounter(self._endpoint)
        self._ids = ids
        self._url = self._endpoint.url(CHAT_PATH)

    def check(self, request: CreateResponse) -> None:
        check(request)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        def read_whole(body: bytes) -> list[bytes]:
            return [to_chunk(body, call.resume)]

        return tell(self._endpoint, partial(self._ask, call), on_chunks, whole=read_whole, enough=_FINISH)

    async def pass_through(self, body: Json) -> RelayedAnswer:
        return await self._endpoint.pass_through(body)

    async def models(self) -> list[Json]:
        return await self._endpoint.models()

    async def count(self, call: ModelCall) -> int | None:
        if self._upstream.tokenizer == "none":
            return None
        return await self._counting.count_chat(await asyncio.to_thread(render, call, self._upstream))

    async def window(self, model: str) -> int | None:
        return await self._counting.window(model)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _ask(self, call: ModelCall) -> Connection:
        """The head of an answer that is no refusal. A long context is put together in a thread, so that streams do not
        wait for it."""
        if len(call.items) > _MANY_ITEMS:
            data = await asyncio.to_thread(lambda: msgspec.json.encode(render(call, self._upstream)))
        else:
            data = msgspec.json.encode(render(call, self._upstream))
        return await self._endpoint.post(self._url, data)
