"""An upstream that itself speaks the Responses API over HTTP. It is asked to keep nothing: the state is kept here.

Only a run in its background is kept there, until it is deleted: it numbers the run's events, so a connection that
breaks costs nothing, and the next one goes on after the last number that was read.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from hashlib import sha256

import msgspec

from outlive.core.errors import LostRun, UpstreamFault
from outlive.core.grammar import TERMINAL_EVENTS
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.dialects.backend import Connect, HttpBackend
from outlive.dialects.responses.request import is_encrypted, render
from outlive.dialects.responses.translator import UNFINISHED, ResponsesTranslator, to_event
from outlive.dialects.transport.http1 import Connection, HttpPool
from outlive.ports.backend import ModelCall, Upstream

log = logging.getLogger(__name__)

# A server's refusal of encrypted reasoning: from another server's model, or for a model that has none.
_ENCRYPTED = re.compile(r"encrypted", re.I)
# Fields that have a bearing on the number of tokens, and may stand in a request to count them.
_COUNTED = ("model", "input", "instructions", "tools", "tool_choice", "text", "reasoning", "parallel_tool_calls")

# Seconds before each further connection to a run; after the last one the fault goes to the runner.
_PAUSES = (0.0, 0.25, 0.5, 1.0, 2.0)
# The same, for deleting a run; and how long a deletion may delay the server's shutdown.
_DISMISS_PAUSES = (0.0, 1.0, 5.0)
_SHUTDOWN_SECONDS = 3.0
_MOST_BYTES = 64 * 1024  # of an answer of which only the status is wanted
_ID_LENGTH = 48


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


class DerivedIds(msgspec.Struct):
    """Source of ids that are the same whenever the same run is read again: they are derived from a unique seed."""

    seed: str
    count: int = 0

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{sha256(f'{self.seed}/{self.count}'.encode()).hexdigest()[:_ID_LENGTH]}"


class ResponsesBackend(HttpBackend):
    """It refuses no request itself: a parameter that is unknown here is the upstream's own."""

    path = "responses"
    last = re.compile(rb'"type"\s*:\s*"response\.(?:completed|incomplete|failed|cancelled)"')

    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource) -> None:
        super().__init__(upstream, pool, ids)
        self.background_runs = self if upstream.reattach else None
        self._dismissing: set[asyncio.Task[None]] = set()
        self._unencrypted: set[str] = set()  # models whose server refuses a request for encrypted reasoning

    def translator(self, call: ModelCall) -> ResponsesTranslator:
        # A run that is read again from its beginning must get the same ids again.
        ids = self._ids if self.background_runs is None else DerivedIds(call.response_id)
        return ResponsesTranslator(call, ids, self.read_fault)

    def _to_chunks(self, body: bytes, resume: OpenText | None) -> list[bytes]:
        return [to_event(body, self.read_fault)]

    async def count(self, call: ModelCall) -> int | None:
        body = await asyncio.to_thread(render, call, self.upstream)
        return await self._ask_count(f"{self.path}/input_tokens", body, _COUNTED)

    async def close(self) -> None:
        """Wait a moment for the deletions under way."""
        if self._dismissing:
            _, late = await asyncio.wait(self._dismissing, timeout=_SHUTDOWN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await super().close()

    async def _ask(self, call: ModelCall, background: bool = False) -> Connection:
        """Ask for encrypted reasoning, and send it back, so that a model can go on from it. But not every model has
        any, and reasoning that another server has encrypted is refused: then ask once more without."""
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
        make = partial(render, call, self.upstream, encrypted=encrypted, background=background)
        if background:
            # This process may die before it knows the run's id. Servers that know this header return the same run then.
            key = {"idempotency-key": f"outlive-{call.response_id}"}
            try:
                return await self._post(call, make, **key)
            except UpstreamFault as fault:
                if fault.status != 409:
                    raise  # otherwise the request has changed since
        return await self._post(call, make)

    # -- background runs

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        return self._read_all(partial(self._ask, call, background=True), None)

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

    async def _read_all(self, connect: Connect, run_id: str | None) -> AsyncGenerator[list[bytes], None]:
        """Yield the events of a run, over as many connections as it takes."""
        newest: _Event | None = None
        failures = 0
        while True:
            fault = UpstreamFault(UNFINISHED, reason="upstream_lost")
            try:
                async with aclosing(self._read(connect)) as stream:
                    async for chunks in stream:
                        failures = 0
                        run_id = run_id or self.read_id(chunks)
                        newest = _peek(chunks[-1])
                        yield chunks
                if newest is not None and newest.type in TERMINAL_EVENTS:
                    return
            except UpstreamFault as broken:
                fault = broken
            after = newest.sequence_number if newest is not None else None
            is_known = newest is None or after is not None  # the next connection can go on from here
            may_help = fault.retryable and not isinstance(fault, LostRun) and failures < len(_PAUSES)
            if run_id is None or not is_known or not may_help:
                raise fault
            await asyncio.sleep(_PAUSES[failures])
            failures += 1
            connect = partial(self._reconnect, run_id, after)

    async def _reconnect(self, run_id: str, after: int | None) -> Connection:
        start = {} if after is None else {"starting_after": str(after)}
        try:
            return await self.request("GET", self.url(f"{self.path}/{run_id}", stream="true", **start))
        except UpstreamFault as fault:
            if fault.status == 404:
                raise LostRun from None
            raise

    async def _dismiss(self, run_id: str, running: bool) -> None:
        for pause in _DISMISS_PAUSES:
            await asyncio.sleep(pause)
            try:
                if running:
                    await self._send("POST", f"{self.path}/{run_id}/cancel")
                status = await self._send("DELETE", f"{self.path}/{run_id}")
            except (UpstreamFault, OSError):
                continue
            if status < 500 and status not in (408, 409, 429):
                return
        log.warning("deleting a background response failed: a copy may remain there", extra={"upstream": self.name})

    async def _send(self, method: str, path: str) -> int:
        answer = await self.request(method, self.url(path), any_status=True)
        try:
            await answer.read_start(_MOST_BYTES)
            return answer.status
        finally:
            answer.leave()
