"""One turn on a WebSocket, from its frame to its terminal event, and what the connection remembers of it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from outlive.core.errors import NotFound, OutliveError, ServerFault
from outlive.core.events import Json, payloads
from outlive.engine.admission import Submission
from outlive.engine.delivery.reader import Cursor, StreamInterrupted
from outlive.engine.engine import Engine
from outlive.http.request import Call
from outlive.http.responses import admit
from outlive.http.websocket.frames import error_text, event_text
from outlive.ports.ledger import Memory

log = logging.getLogger(__name__)

# So many responses that are not stored can be continued on one connection: the latest.
MAX_REMEMBERED = 64

SendText = Callable[[str], Awaitable[None]]


class Kept(NamedTuple):
    memory: Memory
    lane: str | None
    size: int  # bytes of the frames and answers that it is made of, with those it continues


class Cache:
    """The latest responses of one connection that are not stored. It is memory, and dies with the connection (D4)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def find(self, response_id: object) -> Kept | None:
        return self._kept.get(response_id) if isinstance(response_id, str) else None

    def keep(self, response_id: str, kept: Kept) -> None:
        self._kept[response_id] = kept
        self._bytes += kept.size
        while self._bytes > self._max_bytes or len(self._kept) > MAX_REMEMBERED:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size

    def evict(self, response_id: object, lane: str | None) -> None:
        """A turn that should have continued it failed. On another lane that was a fork, and changes nothing."""
        kept = self.find(response_id)
        if kept is not None and kept.lane == lane:
            del self._kept[str(response_id)]
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

    async def run(self, call: Call, cache: Cache, send: SendText) -> None:
        """Answer it, with events or with an error. Raises OSError when the client has gone."""
        try:
            await self._answer(call, cache, send)
            return
        except OutliveError as error:
            refused = error
        except OSError:
            raise
        except Exception:
            log.exception("a turn failed (%s)", call.request_id)
            refused = mistake(call)
        cache.evict(self._parent, self.lane)
        await send(error_text(refused, self.lane))

    async def _answer(self, call: Call, cache: Cache, send: SendText) -> None:
        engine, kept = call.engine, cache.find(self._parent)
        memory = kept.memory if kept is not None else None
        accepted = await admit(engine, Submission(owner=call.owner, body=self._body, large=self._large, memory=memory))
        self.response_id = accepted.response_id
        if accepted.request.store:
            await self._stream(engine, engine.reader.follow(accepted.response_id), send)
            return
        cursor = engine.fleeting_reader.follow(accepted.response_id)
        try:
            await self._stream(engine, cursor, send)
            memory = engine.fleeting.remember(accepted.response_id)
        finally:
            engine.fleeting.stop(accepted.response_id)
        if memory is None:
            cache.evict(self._parent, self.lane)
        else:
            size = self.size + len(cursor.final or b"") + (kept.size if kept is not None else 0)
            cache.keep(accepted.response_id, Kept(memory, self.lane, size))

    async def _stream(self, engine: Engine, cursor: Cursor, send: SendText) -> None:
        """Send what the cursor reads. When the server is leaving this ends early, and the connection with it."""
        try:
            while frames := await cursor.read():
                for payload in payloads(frames):
                    await send(event_text(payload, self.lane))
        except StreamInterrupted:
            if not engine.worker.draining:
                raise NotFound(f"Response with id '{cursor.id}' was deleted.") from None
        finally:
            cursor.leave()


def mistake(call: Call) -> ServerFault:
    return ServerFault(f"The server made a mistake. If it happens again, report it with this id: {call.request_id}.")
