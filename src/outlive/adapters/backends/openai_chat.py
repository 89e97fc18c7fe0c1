"""An upstream that speaks Chat Completions over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import msgspec

from outlive.adapters.backends.counting import Counting
from outlive.adapters.backends.endpoint import CHAT_PATH, Endpoint, Passed
from outlive.adapters.backends.event_stream import EventStream
from outlive.adapters.backends.http1 import Pool
from outlive.adapters.backends.silence import Silence
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests import CreateResponse
from outlive.ports.backend import ContinuationMode, Lasting, ModelCall, Upstream
from outlive.translate.chat_completions import ChatTranslator
from outlive.translate.chat_request import check, render
from outlive.translate.chat_whole import to_chunk

_MANY_ITEMS = 500

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class ChatBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    stepwise = False
    lasting: Lasting | None = None

    def __init__(self, upstream: Upstream, pool: Pool, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._endpoint = Endpoint(upstream, pool)
        self._counting = Counting(self._endpoint)
        self._ids = ids
        self._url = self._endpoint.url(CHAT_PATH)

    def check(self, request: CreateResponse) -> None:
        check(request)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    async def stream(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """Ask, and yield the payloads of each read. Closing the generator closes the connection at once."""
        endpoint = self._endpoint
        answer = await endpoint.ask("POST", self._url, await self._render(call))
        silence = Silence(self._upstream.silence_seconds, lambda: answer.fail(TimeoutError()))
        events = EventStream()
        before: list[bytes] = []
        last: list[bytes] = []
        try:
            if answer.status != 200:
                raise await endpoint.refusal(answer)
            if answer.content_type in ("application/json", "text/html"):
                yield [to_chunk(await answer.read_whole(), call.resume)]
                return
            while piece := await answer.read():
                silence.heard()
                if payloads := events.feed(piece):
                    before, last = last, payloads
                    yield payloads
                if events.done:
                    return
            if payloads := events.end():
                yield payloads
        except OSError as error:
            # After the finish only the usage can be missing, and the answer is whole without it.
            if not any(_FINISH.search(payload) for payload in before + last):
                raise endpoint.broken(error) from error
        finally:
            silence.stop()
            endpoint.leave(answer, events.done)

    async def pass_through(self, body: Json) -> Passed:
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

    async def _render(self, call: ModelCall) -> bytes:
        """The request's body; a long context is put together in a thread, so that streams do not wait for it."""
        if len(call.items) > _MANY_ITEMS:
            return await asyncio.to_thread(lambda: msgspec.json.encode(render(call, self._upstream)))
        return msgspec.json.encode(render(call, self._upstream))
