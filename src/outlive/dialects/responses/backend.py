"""An upstream that itself speaks the Responses API over HTTP. It is asked to keep nothing: the state is kept here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.backend import HttpBackend
from outlive.dialects.responses.background_runs import DerivedIds, ResponsesRuns
from outlive.dialects.responses.endings import to_event
from outlive.dialects.responses.request import is_encrypted, render
from outlive.dialects.responses.translator import ResponsesTranslator
from outlive.dialects.transport.http1 import Connection, ConnectionPool
from outlive.dialects.transport.stream import read_stream
from outlive.dialects.transport.token_counter import read_number
from outlive.ports.backend import ModelCall, OnChunks, Upstream

_PATH = "responses"

_LAST = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed|cancelled)"')
# A server's refusal of encrypted reasoning: from another server's model, or for a model that has none.
_ENCRYPTED = re.compile(r"encrypted", re.I)
# Fields that have a bearing on the number of tokens, and may stand in a request to count them.
_COUNTED = ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")


class ResponsesBackend(HttpBackend):
    def __init__(self, upstream: Upstream, pool: ConnectionPool, ids: IdSource) -> None:
        super().__init__(upstream, pool, ids, _PATH)
        self._runs: ResponsesRuns | None = None
        if upstream.reattach:
            self._runs = ResponsesRuns(self._endpoint, _PATH, partial(self._ask, background=True), self._read)
        self.background_runs = self._runs
        self._unencrypted: set[str] = set()  # models whose server refuses a request for encrypted reasoning

    def check(self, request: CreateResponse) -> None:
        """Refuse nothing: a parameter that is unknown here is the upstream's own, and the upstream's to refuse."""

    def translator(self, call: ModelCall) -> ResponsesTranslator:
        # A run that is read again from its beginning must get the same ids again.
        return ResponsesTranslator(call, self._ids if self._runs is None else DerivedIds(call.response_id))

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        return self._read(partial(self._ask, call), on_chunks)

    def _read(
        self, ask: Callable[[], Awaitable[Connection]], on_chunks: OnChunks | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        return read_stream(self._endpoint, ask, on_chunks, whole=lambda body: [to_event(body)], last=_LAST)

    async def count(self, call: ModelCall) -> int | None:
        body = await asyncio.to_thread(render, call, self._upstream)
        asked = {name: body[name] for name in _COUNTED if name in body}
        return read_number(await self._counter.ask(f"{_PATH}/input_tokens", asked), "input_tokens")

    async def close(self) -> None:
        if self._runs is not None:
            await self._runs.close()
        await super().close()

    async def _ask(self, call: ModelCall, background: bool = False) -> Connection:
        """Ask the model. Raises UpstreamFault for a refusal.

        Encrypted reasoning is asked for, and sent back, so that a model can go on from it. But not every model has
        any, and reasoning that another server has encrypted is refused: then the model is asked once more without.
        """
        encrypted = call.model not in self._unencrypted
        try:
            return await self._submit(call, encrypted, background)
        except UpstreamFault as fault:
            if not encrypted or fault.status != 400 or not _ENCRYPTED.search(fault.message):
                raise
        answer = await self._submit(call, False, background)
        if not any(map(is_encrypted, call.items)):
            self._unencrypted.add(call.model)  # nothing encrypted was sent: the request for it was refused
        return answer

    async def _submit(self, call: ModelCall, encrypted: bool, background: bool) -> Connection:
        def encode() -> bytes:
            return msgspec.json.encode(render(call, self._upstream, encrypted=encrypted, background=background))

        data = await self._render(call, encode)
        if not background:
            return await self._endpoint.post(self._url, data)
        # This process may die before it knows the run's id. Servers that know this header return the same run then.
        key = f"outlive-{call.response_id}"
        try:
            return await self._endpoint.post(self._url, data, {"idempotency-key": key})
        except UpstreamFault as fault:
            if fault.status != 409:
                raise
        return await self._endpoint.post(self._url, data)  # the request has changed since
