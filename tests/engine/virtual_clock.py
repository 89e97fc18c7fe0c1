"""A loop whose time passes only when there is nothing to do: timers are exact, and a test that hangs says so."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits, and nothing will ever happen")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(body: Coroutine[Any, Any, T]) -> T:
    """Run a scene in which nothing but timers and futures is waited for."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body)


class VirtualClock:
    """The loop's own time, as the engine's clock."""

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return 1_000.0 + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def pass_time(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


async def turn(times: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(times):
        await asyncio.sleep(0)
