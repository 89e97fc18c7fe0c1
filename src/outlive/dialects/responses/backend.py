"""An upstream that itself speaks the Responses API over HTTP. It is asked to keep nothing: we keep the state."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.derived_ids import DerivedIds
from outlive.dialects.responses.background_runs import ResponsesRuns
from outlive.dialects.responses.endings import to_event
from outlive.dialects.responses.request import is_encrypted, render
from outlive.dialects.responses.translator import ResponsesTranslator
from outlive.dialects.transport.endpoint import Endpoint, RelayedAnswer
from outlive.dialects.transport.http1 import Connection, Pool
from outlive.dialects.transport.stream import tell
from outlive.dialects.transport.token_counter import TokenCounter, read_number
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, OnChunks, Upstream

_PATH = "responses"
_MANY_ITEMS = 500

_LAST = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed|cancelled)"')
# How a server says that it will not have encrypted reasoning: from another's model, or for a model that has none.
_ENCRYPTED = re.compile(r"encrypted", re.I)
# What has a bearing on the number of tokens, and may stand in a request to count them.
_COUNTED = ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")


class ResponsesBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    stepwise = False

    def __init__(self, upstream: Upstream, pool: Pool, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._endpoint = Endpoint(upstream, pool)
        self._counting = TokenCounter(self._endpoint)
        self._ids = ids
        self._url = self._endpoint.url(_PATH)
        self._runs: ResponsesRuns | None = None
        if upstream.reattach:
            self._runs = ResponsesRuns(self._endpoint, _PATH, partial(self._ask, lasting=True), self._read)
        self.background_runs: BackgroundRuns | None = self._runs
        self._open_minds: set[str] = set()  # models whose server refuses to be asked for encrypted reasoning

    def check(self, request: CreateResponse) -> None:
        """Whatever this server does not know is the upstream's own, and the upstream's to refuse."""

    def translator(self, call: ModelCall) -> ResponsesTranslator:
        # A run that is told again must have the same names in it.
        return ResponsesTranslator(
            call, DerivedIds(call.response_id) if self.background_runs is not None else self._ids
        )

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        return self._read(partial(self._ask, call), on_chunks)

    def _read(
        self, ask: Callable[[], Awaitable[Connection]], on_chunks: OnChunks | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        return tell(self._endpoint, ask, on_chunks, whole=lambda body: [to_event(body)], last=_LAST)

    async def pass_through(self, body: Json) -> RelayedAnswer:
        """Nearly every server that speaks Responses speaks Chat Completions too."""
        return await self._endpoint.pass_through(body)

    async def models(self) -> list[Json]:
        return await self._endpoint.models()

    async def count(self, call: ModelCall) -> int | None:
        body = await asyncio.to_thread(render, call, self._upstream)
        asked = {name: body[name] for name in _COUNTED if name in body}
        return read_number(await self._counting.ask(f"{_PATH}/input_tokens", asked), "input_tokens")

    async def window(self, model: str) -> int | None:
        return await self._counting.window(model)

    async def close(self) -> None:
        if self._runs is not None:
            await self._runs.close()
        await self._endpoint.close()

    async def _ask(self, call: ModelCall, lasting: bool = False) -> Connection:
        """The head of an answer that is no refusal.

        Encrypted reasoning is asked for, and sent back, so that a model thinks on where it was. But not every model
        has any, and what another server has encrypted is refused: then the question is put once more without.
        """
        encrypted = call.model not in self._open_minds
        try:
            return await self._submit(call, encrypted, lasting)
        except UpstreamFault as fault:
            if not encrypted or fault.status != 400 or not _ENCRYPTED.search(fault.message):
                raise
        answer = await self._submit(call, False, lasting)
        if not any(map(is_encrypted, call.items)):
            self._open_minds.add(call.model)  # it was the asking that was refused
        return answer

    async def _submit(self, call: ModelCall, encrypted: bool, lasting: bool) -> Connection:
        data = await self._render(call, encrypted, lasting)
        if not lasting:
            return await self._endpoint.post(self._url, data)
        # We may die before we know the run's id. Servers that know this header give us the same run again then.
        key = f"outlive-{call.response_id}"
        try:
            return await self._endpoint.post(self._url, data, {"idempotency-key": key})
        except UpstreamFault as fault:
            if fault.status != 409:
                raise
        return await self._endpoint.post(self._url, data)  # what we are to ask has changed since

    async def _render(self, call: ModelCall, encrypted: bool, lasting: bool) -> bytes:
        """The request's body; a long context is put together in a thread, so that streams do not wait for it."""

        def encode() -> bytes:
            return msgspec.json.encode(render(call, self._upstream, encrypted=encrypted, lasting=lasting))

        return await asyncio.to_thread(encode) if len(call.items) > _MANY_ITEMS else encode()
