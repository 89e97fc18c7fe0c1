"""How an upstream's answer is told: the payloads of its events as they come, until its end, a break, or silence."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable

from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.event_stream import EventStream
from outlive.dialects.transport.http1 import Connection
from outlive.dialects.transport.idle import IdleTimer
from outlive.ports.backend import OnChunks

# What servers send that answer as a whole, though they were asked for a stream.
_WHOLE = ("application/json", "text/html")


async def tell(
    endpoint: Endpoint,
    ask: Callable[[], Awaitable[Connection]],
    on_chunks: OnChunks | None = None,
    *,
    whole: Callable[[bytes], list[bytes]],
    last: re.Pattern[bytes] | None = None,
    enough: re.Pattern[bytes] | None = None,
) -> AsyncGenerator[list[bytes], None]:
    """The payloads of each read; after the first ones `hear` is given them, if there is one, and nothing is yielded.
    Closing the generator closes the connection at once.

    `whole` makes payloads of an answer that is no stream; `last` is found in a payload that nothing follows, and
    `enough` in one after which an answer is whole, though the connection may break.
    """
    answer = await ask()
    silence = IdleTimer(endpoint.upstream.silence_seconds, lambda: answer.fail(TimeoutError()))
    events = EventStream()
    before: list[bytes] = []
    latest: list[bytes] = []

    def read(piece: bytes) -> list[bytes]:
        nonlocal before, latest
        silence.heard()
        if payloads := events.feed(piece):
            before, latest = latest, payloads
            if last is not None and last.search(payloads[-1]):
                events.done = True  # not every server says so, or hangs up
        return payloads

    def take(piece: bytes) -> bool:
        payloads = read(piece)
        return (not payloads or on_chunks is None or on_chunks(payloads)) and not events.done

    try:
        if answer.content_type in _WHOLE:
            yield whole(await answer.read_whole())
            return
        while piece := await answer.read():
            if payloads := read(piece):
                yield payloads
            if on_chunks is not None and not events.done:
                await answer.forward_to(take)
                yield []  # whoever hears may have wanted its turn
            if events.done:
                return
        if payloads := events.end():
            yield payloads
    except OSError as error:
        if enough is None or not any(enough.search(payload) for payload in before + latest):
            raise endpoint.broken(error) from error
    finally:
        silence.stop()
        endpoint.leave(answer, events.done)
