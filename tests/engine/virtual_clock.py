"""An event loop with virtual time, which passes only while nothing is ready: timers are exact, and a hang raises."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            self.now += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self.errors: list[Exception] = []  # raised by callbacks
        self.set_exception_handler(self._on_error)

    def time(self) -> float:
        return self._virtual.now

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.default_exception_handler(context)
        if "handle" in context:
            self.errors.append(context["exception"])


def run_virtually(body: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for timers and futures only. Raises also what callbacks raised meanwhile."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(body)
    if loop.errors:
        raise ExceptionGroup("callbacks failed", loop.errors)
    return result


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function, run with `run_virtually`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(test(*args, **kwargs))

    return run


class VirtualClock:
    """The loop's own time, as the engine's clock."""

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return 1_000.0 + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def elapsed() -> float:
    """Return the virtual seconds since the loop began."""
    return asyncio.get_running_loop().time()


async def pass_time(seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)


async def turn(times: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(times):
        await asyncio.sleep(0)
