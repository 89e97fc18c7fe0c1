"""Intake: what clients send is parsed in short steps, so that no connection keeps the event loop from the others."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

# Seconds after which parsing yields to the other connections.
STEP_SECONDS = 0.001

# Parses a piece of the data from the given position on and returns its length; 0 if it must wait.
Feed = Callable[[bytes, int], int]


class Turns:
    """Connections that have more to parse: one of them goes on in each iteration of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, step: Callable[[], None]) -> None:
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        step = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_next)
        step()


class Intake:
    """The bytes that one client has sent and that are not parsed yet. While there are some, nothing more is read."""

    __slots__ = ("_is_due", "_is_stopped", "_rest", "_transport", "_turns", "feed", "is_paused")

    def __init__(self, transport: asyncio.Transport, turns: Turns, feed: Feed) -> None:
        self.feed = feed
        self._transport = transport
        self._turns = turns
        self._rest = b""
        self._is_due = False  # it has a turn
        self._is_stopped = False  # the protocol takes nothing more
        self.is_paused = False  # the transport reads nothing more, so that the client cannot send

    def take(self, data: bytes) -> None:
        """Parse what was received, behind what is left of the last time."""
        self._rest = self._rest + data if self._rest else data
        if not self._is_due:
            self._parse()

    def stop(self) -> None:
        """Parse nothing more, and read nothing more."""
        self._is_stopped = True
        self._pause_or_resume()

    def resume(self) -> None:
        """Parse what is left, if it may be parsed now, and read on when nothing is left."""
        self._is_stopped = False
        if not self._rest:
            self._pause_or_resume()
        elif not self._is_due:
            self._take_turn()

    def end(self) -> None:
        """Drop everything: the connection is gone, and must not be kept by what it holds."""
        self._rest = b""
        self.feed = lambda data, position: len(data) - position

    def _take_turn(self) -> None:
        self._is_due = True
        self._turns.add(self._parse)

    def _parse(self) -> None:
        self._is_due = False
        data, position, end = self._rest, 0, monotonic() + STEP_SECONDS
        self._rest = b""
        while position < len(data) and not self._is_stopped and not self._transport.is_closing():
            if (length := self.feed(data, position)) == 0:
                break
            position += length
            if position < len(data) and monotonic() > end:
                self._take_turn()
                break
        self._rest = data[position:]
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        wanted = self._is_stopped or bool(self._rest)
        if wanted == self.is_paused or self._transport.is_closing():
            return
        self.is_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
