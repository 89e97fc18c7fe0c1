"""Streams: the stored frames, sent as they are, one write per read."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from outlive.core.events import DONE_FRAME
from outlive.engine.reader import Cursor, Cut
from outlive.http.call import Call

# How long a client must have waited before it is watched: most short requests are over by then, and need no watcher.
PATIENCE_SECONDS = 0.05

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"


class Attention:
    """Notices when the client goes away, and stops its cursor. (`send` to a dead client succeeds silently.)"""

    def __init__(self, call: Call, cursor: Cursor) -> None:
        self._call = call
        self._cursor = cursor
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._start)

    def __enter__(self) -> Attention:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._cursor.leave()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._call.receive())["type"] != "http.disconnect":
            pass
        self._cursor.stop()


async def stream(call: Call, cursor: Cursor) -> bool:
    """Send what the cursor reads until the response ends. True when the client has had all of it."""
    send, pour = call.send, call.pour
    with Attention(call, cursor), contextlib.suppress(OSError, Cut):
        await call.start(200, CONTENT_TYPE, HEADERS)
        while frames := await cursor.read():
            if cursor.ended:
                here = not call.has_left()
                await send({"type": "http.response.body", "body": frames + DONE_FRAME})
                return here
            await send({"type": "http.response.body", "body": frames, "more_body": True})
            if pour is not None:
                await cursor.pass_on(pour)
        if cursor.ended:
            here = not call.has_left()
            await send({"type": "http.response.body", "body": DONE_FRAME})
            return here
    # Without a last chunk: whoever still listens must see that this was no end (D11).
    return False
