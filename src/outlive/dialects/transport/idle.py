"""Notices an upstream that has fallen silent: one timer per stream, which looks at when something last came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls `end` once nothing was heard for so long. Hearing something costs no timer."""

    __slots__ = ("_end", "_last", "_loop", "_seconds", "_timer")

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._end = end
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._look)

    def heard(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._last + self._seconds - self._loop.time()
        if left <= 0:
            self._end()
        else:
            self._timer = self._loop.call_later(left, self._look)
