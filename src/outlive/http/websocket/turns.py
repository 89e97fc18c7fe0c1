"""One turn on a WebSocket, from its frame to its terminal event, and the connection's memory of it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from outlive.core.errors import NotFound, ServerFault
from outlive.core.events import Json, payloads
from outlive.engine.admission import Submission
from outlive.engine.delivery.reader import Cursor, StreamInterrupted
from outlive.engine.engine import Engine
from outlive.http.request import Request
from outlive.http.websocket.frames import event_text
from outlive.ports.ledger import Memory

log = logging.getLogger(__name__)

# The latest responses that are not stored and can be continued on one connection.
MAX_REMEMBERED = 64

SendText = Callable[[str], Awaitable[None]]


class CachedTurn(NamedTuple):
    """A response that is not stored, as its connection remembers it."""

    memory: Memory
    lane: str | None
    size: int  # bytes of the frames and answers that it is made of, with those it continues


class Cache:
    """The latest responses of one connection that are not stored. It is memory, and dies with the connection (D4)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._turns: OrderedDict[str, CachedTurn] = OrderedDict()

    def find(self, response_id: object) -> CachedTurn | None:
        return self._turns.get(response_id) if isinstance(response_id, str) else None

    def keep(self, response_id: str, kept: CachedTurn) -> None:
        self._turns[response_id] = kept
        self._bytes += kept.size
        while self._bytes > self._max_bytes or len(self._turns) > MAX_REMEMBERED:
            _, oldest = self._turns.popitem(last=False)
            self._bytes -= oldest.size

    def evict(self, response_id: object, lane: str | None) -> None:
        """Forget a response whose continuation failed. A failure on another lane was a fork, and changes nothing."""
        kept = self.find(response_id)
        if kept is not None and kept.lane == lane:
            del self._turns[str(response_id)]
            self._bytes -= kept.size


class Turn:
    """One `response.create`: admitted like a POST, read like a stream."""

    def __init__(self, lane: str | None, body: Json, size: int, large: bool) -> None:
        self.lane = lane
        self.size = size
        self.background = body.get("background") is True
        self.response_id: str | None = None
        self._body = body
        self._parent = body.get("previous_response_id")
        self._large = large

    async def run(self, request: Request, cache: Cache, send: SendText) -> None:
        """Answer with events. Raises the error to answer with instead, or OSError when the client has gone."""
        answered = False
        try:
            await self._answer(request, cache, send)
            answered = True
        finally:
            if not answered:
                cache.evict(self._parent, self.lane)

    async def _answer(self, request: Request, cache: Cache, send: SendText) -> None:
        engine, parent = request.engine, cache.find(self._parent)
        memory = parent.memory if parent is not None else None
        submission = Submission(owner=request.owner, body=self._body, large=self._large, memory=memory)
        async with engine.create(submission) as created:
            self.response_id = created.id
            cursor = created.follow()
            final = await self._stream(engine, cursor, send)
            if created.request.store:
                return
            memory = created.remember()
        if memory is None:
            cache.evict(self._parent, self.lane)
        else:
            size = self.size + len(final) + (parent.size if parent is not None else 0)
            cache.keep(created.id, CachedTurn(memory, self.lane, size))

    async def _stream(self, engine: Engine, cursor: Cursor, send: SendText) -> bytes:
        """Send what the cursor reads, and return the final object. In a shutdown this ends early, and the connection
        with it."""
        try:
            while frames := await cursor.read():
                for payload in payloads(frames):
                    await send(event_text(payload, self.lane))
            return cursor.final or b""
        except StreamInterrupted:
            if not engine.is_draining:
                raise NotFound(f"Response with id '{cursor.id}' was deleted.") from None
            return b""
        finally:
            cursor.close()


def mistake(request: Request) -> ServerFault:
    return ServerFault(f"The server made a mistake. If it happens again, report it with this id: {request.request_id}.")
