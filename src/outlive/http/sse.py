"""Streams: the stored frames, sent as they are, one write per read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from outlive.core.events import DONE_FRAME
from outlive.engine.delivery.reader import Cursor, StreamInterrupted
from outlive.http.request import Request

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
CONTENT_TYPE = "text/event-stream; charset=utf-8"


@contextlib.contextmanager
def watching(request: Request, cursor: Cursor) -> Iterator[None]:
    """Stop the cursor when the client goes away. (`send` to a dead client succeeds silently.)"""
    request.connection.watch(cursor.stop)
    try:
        yield
    finally:
        request.connection.watch(None)
        cursor.close()


async def stream(request: Request, cursor: Cursor) -> bool:
    """Send what the cursor reads until the response ends. Returns True if the client has had all of it."""
    send, write_now = request.send, request.connection.write_now
    with watching(request, cursor), contextlib.suppress(OSError, StreamInterrupted):
        await request.start(200, CONTENT_TYPE, HEADERS)
        while frames := await cursor.read():
            if cursor.ended:
                here = not request.has_left()
                await send({"type": "http.response.body", "body": frames + DONE_FRAME})
                return here
            await send({"type": "http.response.body", "body": frames, "more_body": True})
            await cursor.forward_to(write_now)
        if cursor.ended:
            here = not request.has_left()
            await send({"type": "http.response.body", "body": DONE_FRAME})
            return here
    # Without a last chunk: a client that still reads must see that this was no clean end (D11).
    return False
