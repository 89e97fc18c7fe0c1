"""Reader of an upstream's streamed answer: its events' payloads as they come, until its end, a break or silence."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable

from outlive.core.requests.body import has_too_many_values
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.event_stream import EventStream
from outlive.dialects.transport.http1 import AnswerTooLong, Connection
from outlive.ports.backend import OnChunks

# Bytes of an answer that comes as a whole, which is decoded in a thread if it is longer than the second.
MOST_WHOLE = 32 * 1024 * 1024
_INLINE_BYTES = 256 * 1024
# Content types of servers that answer as a whole, though they were asked for a stream.
_WHOLE = ("application/json", "text/html")


async def read_stream(
    endpoint: Endpoint,
    ask: Callable[[], Awaitable[Connection]],
    on_chunks: OnChunks | None = None,
    *,
    whole: Callable[[bytes], list[bytes]],
    last: re.Pattern[bytes] | None = None,
    enough: re.Pattern[bytes] | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """Yield the payloads of each read; with `on_chunks`, all but the first are given to that instead.

    `whole` makes payloads of an answer that is no stream; `last` is found in a payload that nothing follows, and
    `enough` in one after which an answer is whole, though the connection may break. Closing the generator closes the
    connection at once.
    """
    answer = await ask()
    events = EventStream()
    before: list[bytes] = []
    latest: list[bytes] = []

    def read(piece: bytes) -> list[bytes]:
        nonlocal before, latest
        if payloads := events.feed(piece):
            before, latest = latest, payloads
            if last is not None and last.search(payloads[-1]):
                events.done = True  # not every server says so, or closes the connection
        return payloads

    def take(piece: bytes) -> bool:
        payloads = read(piece)
        return (not payloads or on_chunks is None or on_chunks(payloads)) and not events.done

    try:
        if answer.content_type in _WHOLE:
            yield await _decode(await answer.read_whole(MOST_WHOLE), whole)
            return
        while piece := await answer.read():
            if payloads := read(piece):
                yield payloads
            if on_chunks is not None and not events.done:
                await answer.forward_to(take)
                yield []  # `on_chunks` may have asked for it
            if events.done:
                return
        if payloads := events.end():
            yield payloads
    except OSError as error:
        if enough is None or not any(enough.search(payload) for payload in before + latest):
            raise endpoint.broken(error) from error
    finally:
        endpoint.leave(answer, events.done)


async def _decode(body: bytes, whole: Callable[[bytes], list[bytes]]) -> list[bytes]:
    """Make payloads of an answer that is no stream; in a thread if it is long."""
    if len(body) <= _INLINE_BYTES:
        return whole(body)
    if await asyncio.to_thread(has_too_many_values, body):
        raise AnswerTooLong("The answer has too many JSON values.")
    return await asyncio.to_thread(whole, body)
