"""WebSocket mode on /v1/responses: one connection, many turns. It reads responses like a stream does, and owns none."""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import msgspec

from outlive.core.errors import InvalidRequest, NotFound, OutliveError, TooMany
from outlive.core.events import Json, payloads
from outlive.core.requests.body import decode_body
from outlive.core.requests.checks import check_response_id, refuse, refuse_missing, refuse_type
from outlive.engine.admission import Submission
from outlive.engine.budget import ByteBudget
from outlive.engine.delivery.reader import Cursor, StreamInterrupted
from outlive.http.errors import describe
from outlive.http.request import LARGE_BYTES, VERSION, Request
from outlive.ports.ledger import Memory

log = logging.getLogger(__name__)

# OpenAI's limits for one connection.
MAX_RUNNING = 16
MAX_NAMED = 32
# Our own limit for the turns that wait behind them.
MAX_WAITING = 256

SOCKET_PATH = "/v1/responses"
# Seconds beyond its time limit for which a connection stays open for turns that are under way.
LAST_SECONDS = 300.0
# Seconds for which a client that does not read can keep its connection from being closed.
CLOSE_SECONDS = 5.0
# The latest responses that are not stored and can be continued on one connection.
MAX_REMEMBERED = 64
_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class CachedTurn(NamedTuple):
    """A response that is not stored, as its connection remembers it."""

    memory: Memory
    lane: str | None
    size: int  # bytes of the frames and answers that it is made of, with those it continues


class Cache:
    """The latest responses of one connection that are not stored. It is memory, and dies with the connection (D4).

    All connections of an owner share a budget, too: where they have used it up, the oldest of this one are forgotten.
    """

    def __init__(self, max_bytes: int, budget: ByteBudget, owner: str) -> None:
        self._left = max_bytes
        self._budget = budget
        self._owner = owner
        self._turns: dict[str, CachedTurn] = {}  # the oldest first

    def find(self, response_id: object) -> CachedTurn | None:
        return self._turns.get(response_id) if isinstance(response_id, str) else None

    def keep(self, response_id: str, kept: CachedTurn) -> None:
        size = kept.size
        while len(self._turns) >= MAX_REMEMBERED or size > self._left or not self._budget.take(self._owner, size):
            if not self._turns:
                return
            self._forget(next(iter(self._turns)))
        self._left -= size
        self._turns[response_id] = kept

    def evict(self, response_id: object, lane: str | None) -> None:
        """Forget a response whose continuation failed. A failure on another lane was a fork, and changes nothing."""
        kept = self.find(response_id)
        if kept is not None and kept.lane == lane:
            self._forget(str(response_id))

    def clear(self) -> None:
        for response_id in list(self._turns):
            self._forget(response_id)

    def _forget(self, response_id: str) -> None:
        size = self._turns.pop(response_id).size
        self._left += size
        self._budget.release(self._owner, size)


@dataclass(slots=True, eq=False)
class Turn:
    """One `response.create`: admitted like a POST, read like a stream."""

    lane: str | None
    body: Json
    size: int  # bytes of its frame
    number: int = 0  # of the turns on its connection
    response_id: str | None = None


class CloseReason(NamedTuple):
    """Code and reason of a close. Both codes make clients that can reconnect do so."""

    code: int
    reason: str
    error: OutliveError | None = None


VOID_KEY = CloseReason(1008, "The key was revoked, or has expired.")
RESTART = CloseReason(1012, "The server is shutting down. Connect again, and resume what was stored.")


class Socket:
    """One WebSocket connection."""

    def __init__(self, request: Request, seconds: float, last_seconds: float = LAST_SECONDS) -> None:
        self._request = request
        self._seconds = seconds
        self._last_seconds = last_seconds
        self._cache = Cache(request.max_body, request.turns, request.owner)
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._waiting: dict[str | None, deque[Turn]] = {}  # by lane, also by those that are idle again
        self._running: dict[str | None, Turn] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}  # of the lanes that have a turn under way
        self._close_reason: CloseReason | None = None
        self._closing = asyncio.Event()
        self._steers, self._turns = count(), count(1)

    async def run(self) -> None:
        """Take frames until the client leaves or the connection is to be closed."""
        await self._request.receive()  # websocket.connect
        headers = [(b"x-request-id", self._request.request_id.encode()), VERSION]
        await self._request.send({"type": "websocket.accept", "headers": headers})
        self._request.status = 101
        loop = asyncio.get_running_loop()
        timers = [
            loop.call_later(self._seconds, self._expire),
            loop.call_later(self._seconds + self._last_seconds, self._closing.set),
        ]
        taking, closing = asyncio.create_task(self._take_all()), asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((taking, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for timer in timers:
                timer.cancel()
            for task in (taking, closing, *self._tasks.values()):  # the reader of all turns is gone
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            for turn in (turn for waiting in self._waiting.values() for turn in waiting):
                self._request.turns.release(self._request.owner, turn.size)
            self._cache.clear()
        if self._closing.is_set() and (reason := self._close_reason) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    if reason.error is not None:
                        await self._send(_error_text(reason.error, None))
                    await self._request.send({"type": "websocket.close", "code": reason.code, "reason": reason.reason})

    def retire(self, reason: CloseReason) -> None:
        """Close when nothing is under way any more."""
        self._close_reason = reason
        self._close_if_idle()

    def end(self, reason: CloseReason) -> None:
        """Close now."""
        self._close_reason = reason
        self._closing.set()

    def _close_if_idle(self) -> None:
        if self._close_reason is not None and not self._tasks:
            self._closing.set()

    def _expire(self) -> None:
        minutes = f"{self._seconds / 60:g} minutes"
        message = f"This connection has reached its time limit ({minutes}). Open a new one to go on."
        error = InvalidRequest(message, code="websocket_connection_limit_reached")
        self.retire(CloseReason(1001, f"The connection is {minutes} old.", error))

    async def _send(self, text: str) -> None:
        # Waits while the client's side of the connection is full, so that a slow reader holds one page of its journal.
        await self._request.send({"type": "websocket.send", "text": text})

    # -- frames from the client

    async def _take_all(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            while (message := await self._request.receive())["type"] == "websocket.receive":
                text = message.get("text")
                await self._answer_errors(self._take(text.encode() if text is not None else message["bytes"]))

    async def _answer_errors(self, work: Awaitable[None], lane: str | None = None) -> None:
        """Do the work, and answer an error that it raises. Raises OSError when the client has gone."""
        try:
            await work
        except OutliveError as error:
            self._request.security.count_error(self._request.scope, self._request.owner, error)
            await self._send(_error_text(error, lane))
        except OSError:
            raise
        except Exception:
            # A bug in one frame or turn must not close the connection that other turns use.
            log.exception("websocket turn failed", extra=self._request.describe())
            await self._send(_error_text(self._request.mistake(), lane))

    async def _take(self, raw: bytes) -> None:
        body = await self._request.decode_message(raw) if len(raw) > LARGE_BYTES else decode_body(raw)
        if not isinstance(body, dict):
            refuse("A frame must hold a JSON object.", None, "invalid_type")
        kind = body.pop("type", None)
        if kind == "response.create":
            lane = body.pop("stream_id", None)  # None is the lane without a name
            if lane is not None and (type(lane) is not str or _LANE.fullmatch(lane) is None):
                message = "'stream_id' must be 1 to 256 letters, digits, '_', '-' or '.'."
                refuse(f"{message} Leave it out for the lane without a name.", "stream_id", "invalid_stream_id")
            await self._answer_errors(self._create(Turn(lane, body, len(raw))), lane)
        elif kind == "response.steer":
            await self._refuse_steer(body)
        else:
            refuse("'type' must be 'response.create' or 'response.steer'.", "type")

    async def _create(self, turn: Turn) -> None:
        """Put a turn behind the others of its lane. Raises InvalidRequest or TooMany."""
        if self._close_reason is not None and self._close_reason.error is not None:
            raise self._close_reason.error
        if turn.body.get("background") is True:
            message = "'background' is not supported over WebSocket. A stored response outlives its connection anyway; "
            refuse(f"{message}to start one and follow it later, POST it.", "background", "unsupported_parameter")
        turn.number = next(self._turns)
        if turn.lane is not None and len(self._waiting.keys() - {None, turn.lane}) >= MAX_NAMED:
            message = f"This connection has {MAX_NAMED} named lanes already. Use one of them, or another connection."
            refuse(message, "stream_id", "websocket_stream_limit_reached")
        waiting = self._waiting.setdefault(turn.lane, deque())
        total = sum(map(len, self._waiting.values()))
        if total >= MAX_WAITING or not self._request.turns.take(self._request.owner, turn.size):
            raise TooMany(f"{total} turns are waiting on this connection already. Wait for one to end.")
        waiting.append(turn)
        if turn.lane not in self._tasks:
            self._tasks[turn.lane] = asyncio.create_task(self._run_lane(turn.lane))

    async def _refuse_steer(self, steer: Json) -> None:
        """Answer a steer: not supported here, with the input to send in a turn of its own. Refuses other fields."""
        for name in ("previous_response_id", "input"):
            if steer.get(name) is None:
                refuse_missing(name)
        for name in steer:
            if name not in ("previous_response_id", "input"):
                refuse(f"'{name}' is not a field of 'response.steer'.", name, "unknown_parameter")
        response_id = check_response_id(steer["previous_response_id"], "previous_response_id")
        if type(steer["input"]) not in (str, list):
            refuse_type(steer["input"], "input", "a string or an array of messages")
        lane = next((turn.lane for turn in self._running.values() if turn.response_id == response_id), None)
        message = "A running response cannot be steered here. Cancel it, or send this input when it has ended."
        error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": message}
        number = next(self._steers)
        failed = {"type": "response.steer.failed", "sequence_number": number, "steer": steer, "error": error}
        await self._send(_text(msgspec.json.encode(failed), lane))

    async def _run_lane(self, lane: str | None) -> None:
        """Run the turns of one lane one after the other, until none is left or the client has gone."""
        waiting, request = self._waiting[lane], self._request
        with contextlib.suppress(OSError):
            while waiting:
                async with self._slots:
                    turn = self._running[lane] = waiting.popleft()
                    request.turns.release(request.owner, turn.size)
                    await self._answer_errors(self._run(turn), lane)
                    del self._running[lane]
        del self._tasks[lane]
        self._close_if_idle()

    async def _run(self, turn: Turn) -> None:
        """Answer a turn with events. Raises the error to answer with instead, or OSError when the client has gone."""
        request, parent_id = self._request, turn.body.get("previous_response_id")
        parent = self._cache.find(parent_id)
        memory = parent.memory if parent is not None else None
        large, origin = (turn.size if turn.size > LARGE_BYTES else 0), request.origin(f".{turn.number}")
        submission = Submission(owner=request.owner, body=turn.body, size=large, memory=memory, origin=origin)
        with contextlib.ExitStack() as failed:
            failed.callback(self._cache.evict, parent_id, turn.lane)
            with await request.engine.create(submission) as created:
                turn.response_id = created.id
                try:
                    final = await self._stream(created.follow(), turn.lane)
                finally:
                    await created.abandon()
                memory = created.remember()
            if memory is not None:
                size = turn.size + len(final) + (parent.size if parent is not None else 0)
                self._cache.keep(created.id, CachedTurn(memory, turn.lane, size))
            if memory is not None or created.request.store:
                failed.pop_all()

    async def _stream(self, cursor: Cursor, lane: str | None) -> bytes:
        """Send what the cursor reads, and return the final object. A shutdown ends this early, with the connection."""
        try:
            while frames := await cursor.read():
                for payload in payloads(frames):
                    await self._send(_text(payload, lane))
            return cursor.final or b""
        except StreamInterrupted:
            if not self._request.engine.is_draining:
                raise NotFound(f"Response with id '{cursor.id}' was deleted.") from None
            return b""
        finally:
            cursor.close()


# -- frames: one JSON object each


def _text(payload: bytes, lane: str | None) -> str:
    """Render an event as its journal has it; on a named lane with that name added."""
    return payload.decode() if lane is None else f'{payload[:-1].decode()},"stream_id":"{lane}"}}'


def _error_text(error: OutliveError, lane: str | None) -> str:
    """Render an error that belongs to no response: the envelope of HTTP, with its status and headers inside."""
    status, envelope, headers = describe(error)
    if headers:
        envelope["error"]["headers"] = headers
    return _text(msgspec.json.encode({"type": "error", "status": status, **envelope}), lane)
