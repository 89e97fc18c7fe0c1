"""WebSocket mode on /v1/responses: one connection, many turns. It reads responses like a stream does, and owns none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from outlive.core.errors import InvalidRequest, NotFound, OutliveError, ShuttingDown, TooMany
from outlive.core.requests.body import decode_body
from outlive.core.requests.checks import refuse
from outlive.engine.engine import Engine
from outlive.http.access import Auth
from outlive.http.errors import describe, encode
from outlive.http.request import LARGE_BYTES, VERSION, Receive, Request, Scope, Send
from outlive.http.websocket.frames import error_text, read_lane, read_steer, steer_failed_text
from outlive.http.websocket.turns import Cache, Turn, mistake

log = logging.getLogger(__name__)

# OpenAI's limits for one connection.
MAX_RUNNING = 16
MAX_NAMED = 32
# Our own limit for the turns that wait behind them.
MAX_WAITING = 256

PATH = "/v1/responses"
# Seconds beyond its time limit for which a connection stays open for turns that are under way.
LAST_SECONDS = 300.0
# Seconds for which a client that does not read can keep its connection from being closed.
CLOSE_SECONDS = 5.0


class Lanes:
    """Runs the turns of one connection, and calls back when none is left."""

    def __init__(self, run: Callable[[Turn], Awaitable[None]], on_idle: Callable[[], None], max_bytes: int) -> None:
        self._run = run
        self._on_idle = on_idle
        self._max_bytes = max_bytes
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._named: set[str] = set()
        self._waiting: dict[str | None, deque[Turn]] = {}
        self._running: dict[str | None, Turn] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """True while a turn is under way."""
        return bool(self._tasks)

    def lane_of(self, response_id: str) -> str | None:
        """Return the lane on which a response is being answered."""
        return next((turn.lane for turn in self._running.values() if turn.response_id == response_id), None)

    def put(self, turn: Turn) -> None:
        """Put a turn behind the others of its lane. Raises InvalidRequest or TooMany."""
        self._check_limits(turn)
        self._waiting.setdefault(turn.lane, deque()).append(turn)
        if turn.lane not in self._tasks:
            self._tasks[turn.lane] = asyncio.create_task(self._follow(turn.lane))

    async def stop(self) -> None:
        """Stop all turns: their reader is gone."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_limits(self, turn: Turn) -> None:
        if turn.lane is not None and turn.lane not in self._named:
            if len(self._named) >= MAX_NAMED:
                refuse(
                    f"This connection has {MAX_NAMED} named lanes already. Use one of them, or another connection.",
                    "stream_id",
                    "websocket_stream_limit_reached",
                )
            self._named.add(turn.lane)
        sizes = [waiting.size for waiting in self._all_waiting()]
        if len(sizes) >= MAX_WAITING or (sizes and sum(sizes) + turn.size > self._max_bytes):
            raise TooMany(f"{len(sizes)} turns are waiting on this connection already. Wait for one to end.")

    def _all_waiting(self) -> Iterator[Turn]:
        for waiting in self._waiting.values():
            yield from waiting

    async def _follow(self, lane: str | None) -> None:
        """Run the turns of one lane, until none is left or the client has gone."""
        waiting = self._waiting[lane]
        with contextlib.suppress(OSError):
            while waiting:
                async with self._slots:
                    turn = self._running[lane] = waiting.popleft()
                    await self._run(turn)
                    del self._running[lane]
        del self._tasks[lane]
        if not self._tasks:
            self._on_idle()


class CloseReason(NamedTuple):
    """Code and reason of a close. Both codes make clients that can reconnect do so."""

    code: int
    reason: str
    error: OutliveError | None = None


RESTART = CloseReason(1012, "The server is shutting down. Connect again, and resume what was stored.")


class Sockets:
    """All WebSocket connections of a server."""

    def __init__(self, engine: Engine, auth: Auth, max_body: int, seconds: float) -> None:
        self._engine = engine
        self._auth = auth
        self._max_body = max_body
        self._seconds = seconds
        self._open: set[Socket] = set()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._engine, self._max_body)
        try:
            request.owner = self._admit(request)
        except OutliveError as error:
            await _deny(request, error)
            return
        socket = Socket(request, self._seconds)
        self._open.add(socket)
        try:
            await socket.run()
        except OSError:
            pass  # the client has gone
        finally:
            self._open.discard(socket)

    def drain(self) -> None:
        """Close every connection as soon as nothing is under way on it."""
        for socket in self._open:
            socket.retire(RESTART)

    def _admit(self, request: Request) -> str:
        owner = self._auth.admit(request)
        if request.scope["path"] != PATH:
            raise NotFound(f"There is no WebSocket at {request.scope['path']}.", code="unknown_url")
        if self._engine.is_draining:
            raise ShuttingDown
        return owner


class Socket:
    """One WebSocket connection."""

    def __init__(self, request: Request, seconds: float, last_seconds: float = LAST_SECONDS) -> None:
        self._request = request
        self._seconds = seconds
        self._last_seconds = last_seconds
        self._cache = Cache(request.max_body)
        self._lanes = Lanes(self._run, self._on_idle, request.max_body)
        self._close_reason: CloseReason | None = None
        self._closing = asyncio.Event()
        self._steers = 0

    async def run(self) -> None:
        """Take frames until the client leaves or the connection is to be closed."""
        await self._request.receive()  # websocket.connect
        headers = [(b"x-request-id", self._request.request_id.encode()), VERSION]
        await self._request.send({"type": "websocket.accept", "headers": headers})
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
            for task in (taking, closing):
                task.cancel()
            await self._lanes.stop()
        if self._closing.is_set() and self._close_reason is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._close(self._close_reason)

    def retire(self, reason: CloseReason) -> None:
        """Close when nothing is under way any more."""
        self._close_reason = reason
        if not self._lanes.busy:
            self._closing.set()

    def _on_idle(self) -> None:
        if self._close_reason is not None:
            self._closing.set()

    def _expire(self) -> None:
        minutes = f"{self._seconds / 60:g} minutes"
        error = InvalidRequest(
            f"This connection has reached its time limit ({minutes}). Open a new one to go on.",
            code="websocket_connection_limit_reached",
        )
        self.retire(CloseReason(1001, f"The connection is {minutes} old.", error))

    async def _close(self, reason: CloseReason) -> None:
        if reason.error is not None:
            await self._send(error_text(reason.error, None))
        await self._request.send({"type": "websocket.close", "code": reason.code, "reason": reason.reason})

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
            await self._send(error_text(error, lane))
        except OSError:
            raise
        except Exception:
            # A bug in one frame or turn must not close the connection that other turns use.
            log.exception("websocket turn failed request=%s", self._request.request_id)
            await self._send(error_text(mistake(self._request), lane))

    async def _take(self, raw: bytes) -> None:
        large = len(raw) > LARGE_BYTES
        body = await asyncio.to_thread(decode_body, raw) if large else decode_body(raw)
        if not isinstance(body, dict):
            refuse("A frame must hold a JSON object.", None, "invalid_type")
        kind = body.pop("type", None)
        if kind == "response.create":
            lane = read_lane(body)
            try:
                self._create(Turn(lane, body, len(raw), large))
            except OutliveError as error:
                await self._send(error_text(error, lane))
        elif kind == "response.steer":
            steer = read_steer(body)
            lane = self._lanes.lane_of(steer["previous_response_id"])
            await self._send(steer_failed_text(steer, self._steers, lane))
            self._steers += 1
        else:
            refuse("'type' must be 'response.create' or 'response.steer'.", "type")

    def _create(self, turn: Turn) -> None:
        if self._close_reason is not None and self._close_reason.error is not None:
            raise self._close_reason.error
        if turn.background:
            refuse(
                "'background' is not supported over WebSocket. A stored response outlives its connection anyway; "
                "to start one and follow it later, POST it.",
                "background",
                "unsupported_parameter",
            )
        self._lanes.put(turn)

    async def _run(self, turn: Turn) -> None:
        await self._answer_errors(turn.run(self._request, self._cache, self._send), turn.lane)


async def _deny(request: Request, error: OutliveError) -> None:
    """Answer the handshake with an error of HTTP."""
    status, body, headers = describe(error)
    raw = [(b"content-type", b"application/json"), (b"x-request-id", request.request_id.encode()), VERSION]
    raw += [(name.encode(), value.encode()) for name, value in headers.items()]
    with contextlib.suppress(OSError):
        await request.send({"type": "websocket.http.response.start", "status": status, "headers": raw})
        await request.send({"type": "websocket.http.response.body", "body": encode(body)})
