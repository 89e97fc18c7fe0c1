"""Streams: the stored frames, sent as they are, one write per read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from outlive.core.events import DONE_FRAME
from outlive.engine.delivery.reader import Cursor, StreamInterrupted
from outlive.http.request import Call

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"


@contextlib.contextmanager
def attention(call: Call, cursor: Cursor) -> Iterator[None]:
    """Stops the cursor when the client goes away. (`send` to a dead client succeeds silently.)"""
    call.outlet.watch(cursor.stop)
    try:
        yield
    finally:
        call.outlet.watch(None)
        cursor.leave()


async def stream(call: Call, cursor: Cursor) -> bool:
    """Send what the cursor reads until the response ends. True when the client has had all of it."""
    send, write_now = call.send, call.outlet.write_now
    with attention(call, cursor), contextlib.suppress(OSError, StreamInterrupted):
        await call.start(200, CONTENT_TYPE, HEADERS)
        while frames := await cursor.read():
            if cursor.ended:
                here = not call.has_left()
                await send({"type": "http.response.body", "body": frames + DONE_FRAME})
                return here
            await send({"type": "http.response.body", "body": frames, "more_body": True})
            await cursor.forward_to(write_now)
        if cursor.ended:
            here = not call.has_left()
            await send({"type": "http.response.body", "body": DONE_FRAME})
            return here
    # Without a last chunk: whoever still listens must see that this was no end (D11).
    return False
