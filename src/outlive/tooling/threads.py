"""Threads for functions that wait by blocking: so many at once, and none that the server would have to wait for."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any

AT_ONCE = 32


class Threads:
    """A thread per call. One that hangs holds its own place, but neither other work nor the server's end."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def run(self, work: Callable[[], Any]) -> Any:
        """What the work returns or raises. A thread cannot be stopped: when cancelled, nobody waits for it any more."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: Exception | None) -> None:
            self._places.release()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def act() -> None:
            result, error = None, None
            try:
                result = context.run(work)
            except Exception as raised:
                error = raised
            except BaseException as raised:  # sys.exit() in a tool ends the call, not the server
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has left
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=act, daemon=True, name="tool").start()
        return await future
