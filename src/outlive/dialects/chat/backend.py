"""An upstream that speaks Chat Completions over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial

import msgspec

from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.backend import HttpBackend
from outlive.dialects.chat.request import check, render
from outlive.dialects.chat.translator import ChatTranslator, to_chunk
from outlive.dialects.transport.endpoint import CHAT_PATH
from outlive.dialects.transport.http1 import Connection, HttpPool
from outlive.dialects.transport.stream import read_stream
from outlive.ports.backend import ModelCall, OnChunks, Upstream

# After it only the usage can be missing, and an answer is whole without that.
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class ChatBackend(HttpBackend):
    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource) -> None:
        super().__init__(upstream, pool, ids, CHAT_PATH)

    def check(self, request: CreateResponse) -> None:
        check(request)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        def read_whole(body: bytes) -> list[bytes]:
            return [to_chunk(body, call.resume)]

        return read_stream(self._endpoint, partial(self._ask, call), on_chunks, whole=read_whole, enough=_FINISH)

    async def count(self, call: ModelCall) -> int | None:
        if self._upstream.tokenizer == "none":
            return None
        return await self._counter.count_chat(await asyncio.to_thread(render, call, self._upstream))

    async def _ask(self, call: ModelCall) -> Connection:
        """Ask the model. Raises UpstreamFault for a refusal."""
        data = await self._render(call, lambda: msgspec.json.encode(render(call, self._upstream)))
        return await self._endpoint.post(self._url, data)
