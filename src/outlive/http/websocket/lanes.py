"""The lanes of a WebSocket: on each one turn after another, several lanes at once, within the connection's limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from outlive.core.errors import TooMany
from outlive.core.requests.checks import refuse
from outlive.http.websocket.turns import Turn

# OpenAI's limits for one connection.
MAX_RUNNING = 16
MAX_NAMED = 32
# Our own limit for the turns that wait behind them.
MAX_WAITING = 256


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
