"""An upstream that itself speaks the Responses API over HTTP. It is asked to keep nothing: the state is kept here.

Only a run in its background is kept there, until it is deleted: it numbers the run's events, so a connection that
breaks costs nothing, and the next one goes on after the last number that was read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from hashlib import sha256

import msgspec

from outlive.core.errors import LostRun, UpstreamFault
from outlive.core.grammar import TERMINAL_EVENTS
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.backend import HttpBackend
from outlive.dialects.responses.request import is_encrypted, render
from outlive.dialects.responses.translator import ResponsesTranslator, to_event
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.http1 import Connection, HttpPool
from outlive.dialects.transport.stream import read_stream
from outlive.ports.backend import ModelCall, OnChunks, Upstream

_LAST = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed|cancelled)"')
# A server's refusal of encrypted reasoning: from another server's model, or for a model that has none.
_ENCRYPTED = re.compile(r"encrypted", re.I)
# Fields that have a bearing on the number of tokens, and may stand in a request to count them.
_COUNTED = ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")


class ResponsesBackend(HttpBackend):
    path = "responses"

    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource) -> None:
        super().__init__(upstream, pool, ids)
        self._runs: ResponsesRuns | None = None
        if upstream.reattach:
            self._runs = ResponsesRuns(self._endpoint, self.path, partial(self._ask, background=True), self._read)
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
        return await self._ask_count(f"{self.path}/input_tokens", asked)

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


log = logging.getLogger(__name__)

# Seconds before each further connection to a run; after the last one the fault goes to the runner.
_PAUSES = (0.0, 0.25, 0.5, 1.0, 2.0)
# The same, for deleting a run; and how long a deletion may delay the server's shutdown.
_DISMISS_PAUSES = (0.0, 1.0, 5.0)
_SHUTDOWN_SECONDS = 3.0
_ID_LENGTH = 48

Connect = Callable[[], Awaitable[Connection]]
Read = Callable[[Connect], AsyncGenerator[list[bytes], None]]
Ask = Callable[[ModelCall], Awaitable[Connection]]


class _Response(msgspec.Struct):
    id: str | None = None


class _Event(msgspec.Struct):
    """The fields of an event that are read here."""

    type: str = ""
    sequence_number: int | None = None
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode


def _peek(chunk: bytes) -> _Event:
    try:
        return _decode(chunk)
    except (ValueError, RecursionError):
        return _Event()  # the translator raises the fault


class DerivedIds:
    """Source of ids that are the same whenever the same run is read again: they are derived from a unique seed."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{sha256(f'{self._seed}/{self._count}'.encode()).hexdigest()[:_ID_LENGTH]}"


class _Progress:
    """The position in a run that was read last."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.is_known = True  # the next connection can go on from here
        self.is_last = False  # nothing follows

    def move(self, newest: bytes) -> None:
        event = _peek(newest)
        self.number = event.sequence_number
        self.is_known = self.number is not None
        self.is_last = event.type in TERMINAL_EVENTS


class ResponsesRuns:
    """The background runs of one upstream. `ask` submits one, `read` reads the events of one answer."""

    def __init__(self, endpoint: Endpoint, path: str, ask: Ask, read: Read) -> None:
        self._endpoint = endpoint
        self._path = path
        self._ask = ask
        self._read = read
        self._dismissing: set[asyncio.Task[None]] = set()

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        return self._read_all(partial(self._ask, call), None)

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        return self._read_all(partial(self._reconnect, run_id, None), run_id)

    def read_id(self, chunks: list[bytes]) -> str | None:
        """Return the run's id, which every event about the response as a whole carries."""
        responses = (_peek(chunk).response for chunk in chunks)
        return next((response.id for response in responses if response is not None and response.id), None)

    def dismiss(self, run_id: str, *, running: bool) -> None:
        task = asyncio.create_task(self._dismiss(run_id, running))
        self._dismissing.add(task)
        task.add_done_callback(self._dismissing.discard)

    async def close(self) -> None:
        """Wait a moment for the deletions under way."""
        if self._dismissing:
            _, late = await asyncio.wait(self._dismissing, timeout=_SHUTDOWN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # -- reading

    async def _read_all(self, connect: Connect, run_id: str | None) -> AsyncGenerator[list[bytes], None]:
        """Yield the events of a run, over as many connections as it takes."""
        progress = _Progress()
        failures = 0
        while True:
            fault = UpstreamFault("The model's server ended its answer without saying that it was over.")
            try:
                async with aclosing(self._read(connect)) as stream:
                    async for chunks in stream:
                        failures = 0
                        run_id = run_id or self.read_id(chunks)
                        progress.move(chunks[-1])
                        yield chunks
                if progress.is_last:
                    return
            except UpstreamFault as broken:
                fault = broken
            if run_id is None or not fault.retryable or not progress.is_known or failures == len(_PAUSES):
                raise fault
            if isinstance(fault, LostRun):
                raise fault
            await asyncio.sleep(_PAUSES[failures])
            failures += 1
            connect = partial(self._reconnect, run_id, progress.number)

    async def _reconnect(self, run_id: str, after: int | None) -> Connection:
        query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": str(after)}
        answer = await self._endpoint.ask("GET", self._endpoint.url(f"{self._path}/{run_id}", **query))
        if answer.status == 200:
            return answer
        try:
            fault = await self._endpoint.refusal(answer)
        finally:
            answer.leave()
        if answer.status == 404:
            raise LostRun
        raise fault

    # -- deleting

    async def _dismiss(self, run_id: str, running: bool) -> None:
        url = self._endpoint.url(f"{self._path}/{run_id}")
        for pause in _DISMISS_PAUSES:
            await asyncio.sleep(pause)
            try:
                if running:
                    await self._send("POST", self._endpoint.url(f"{self._path}/{run_id}/cancel"))
                status = await self._send("DELETE", url)
            except (UpstreamFault, OSError):
                continue
            if status < 500 and status not in (408, 409, 429):
                return
        log.warning("deleting a background response failed: a copy may remain at the upstream %s", self._endpoint.name)

    async def _send(self, method: str, url: str) -> int:
        answer = await self._endpoint.ask(method, url)
        try:
            await answer.read_whole()
            return answer.status
        finally:
            answer.leave()
