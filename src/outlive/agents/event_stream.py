"""The events of one model call in the background, as the SDK's own model wants to read them."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from agents.models.openai_responses import _mark_transport_request_without_usage
from openai import ConflictError
from openai.types.responses import ResponseStreamEvent

from outlive import client as durable
from outlive.agents.background import Errand, begin_span
from outlive.agents.errors import check_ending
from outlive.client import TERMINAL_EVENTS, AsyncResponseStream, PollTimeout, response_of


class EventStream:
    """Every event once, then the end; a bad ending is an error instead of an event.

    (The runner turns the events of bad endings into an error that has no response; ours has.)
    """

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._stream: AsyncResponseStream | None = None
        self._first: asyncio.Future[ResponseStreamEvent] | None = None
        self._over = False
        self._end_span = begin_span(errand)
        self._began = asyncio.get_running_loop().time()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseStreamEvent:
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._read()
        except asyncio.CancelledError:
            self._leave()
            raise
        except Exception as error:
            self._finish()
            if not isinstance(error, StopAsyncIteration):
                self._errand.explain(error)
            raise
        return self._take(event)

    async def aclose(self) -> None:
        """Whoever closes a stream before its end has lost interest, as if he had been cancelled."""
        if not self._over:
            self._leave()
        if self._stream is not None:
            await self._stream.aclose()

    async def _read(self) -> ResponseStreamEvent:
        if self._first is None:
            # In a task of its own: the POST goes on when its caller is cancelled, until the id is known.
            self._first = asyncio.ensure_future(self._open())
            return await asyncio.shield(self._first)
        assert self._stream is not None
        if self._errand.max_wait is None:
            return await self._stream.__anext__()
        limit = asyncio.timeout_at(self._began + self._errand.max_wait)
        try:
            async with limit:
                return await self._stream.__anext__()
        except TimeoutError:
            if not limit.expired():
                raise
            waited = asyncio.get_running_loop().time() - self._began
            raise PollTimeout(str(self._errand.watch.response_id), waited) from None

    async def _open(self) -> ResponseStreamEvent:
        errand = self._errand
        more: dict[str, Any] = {"patience": errand.patience, "progress": errand.watch}
        found = await errand.find()
        if found is None:
            create = {**errand.create, "background": True}
            self._stream = durable.stream(errand.client, idempotency_key=errand.key, **more, **create)
            try:
                event = await self._stream.__anext__()
            except ConflictError as error:
                found = await errand.adopt(error)
            else:
                if errand.turn is not None and errand.watch.response_id is not None:
                    await errand.turn.note(errand.watch.response_id)
                return event
        self._stream = durable.resume(errand.client, found, **more)
        return await self._stream.__anext__()

    def _take(self, event: ResponseStreamEvent) -> ResponseStreamEvent:
        if event.type not in TERMINAL_EVENTS:
            return event
        self._finish()
        response = response_of(event)
        if response is not None:
            check_ending(response)
            _mark_transport_request_without_usage(response)
            if self._errand.turn is not None:
                self._errand.turn.end(response)
        return event

    def _leave(self) -> None:
        if self._over:
            return
        self._finish()
        if self._first is not None:
            self._errand.leave(self._first, stream=True)

    def _finish(self) -> None:
        self._over = True
        self._end_span()
