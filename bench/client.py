"""One user of /v1/responses: asks, reads and counts, without parsing a stream's JSON."""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections import Counter
from collections.abc import Awaitable
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec

Json = dict[str, Any]

PROMPT = "Say something."
STAMP = re.compile(rb'"@(\d{15})@"')

now = time.perf_counter


class Reading:
    """Marks of a stream: a token, the first thing to be timed, and the end."""

    def __init__(self, token: bytes, first: bytes, end: bytes) -> None:
        self.token, self.first, self.end = token, first, end


# Spaces may follow a colon in some servers' JSON, so nothing here spans one.
RESPONSES = Reading(b'output_text.delta"', b'output_text.delta"', b'"response.completed"')
REPLAY = Reading(b'output_text.delta"', b"data:", b'"response.completed"')
CHAT = Reading(b'"delta":{"content":"', b'"delta":{"content":"', b"data: [DONE]")


class Answer:
    """One HTTP answer; of a stream only what was counted is kept."""

    __slots__ = ("body", "ended", "first", "started", "status", "tokens")

    def __init__(self) -> None:
        self.status = self.tokens = 0
        self.ended = False
        self.body = b""
        self.started, self.first = now(), 0.0

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Tally:
    """Counts of all clients of a load while the window was open."""

    def __init__(self) -> None:
        self.open = False
        self.requests = self.tokens = self.dropped = 0
        self.first, self.whole = array("d"), array("d")  # seconds
        self.latency = array("q")  # microseconds from the upstream's write to the client's read
        self.errors: Counter[str] = Counter()


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request under way."""

    def __init__(self, tally: Tally, reading: Reading) -> None:
        self._tally, self._reading = tally, reading
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._answer = Answer()
        self._is_stream, self._rest = False, b""

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, raw: bytes) -> asyncio.Future[Answer]:
        assert self._transport is not None
        self._answer, self._waiter = Answer(), asyncio.get_running_loop().create_future()
        self._is_stream, self._rest = False, b""
        self._transport.write(raw)
        return self._waiter

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("cut" if self._answer.status else "refused"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._is_stream:
            self._count(body)
        else:
            self._answer.body += body

    def on_message_complete(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._answer)

    def _count(self, data: bytes) -> None:
        # Only whole lines are looked at, so that nothing is missed or counted twice between two reads.
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        lines += newline
        answer, tally, reading = self._answer, self._tally, self._reading
        tokens = lines.count(reading.token)
        if not answer.first and reading.first in lines:
            answer.first = now()
            if tally.open:
                tally.first.append(answer.first - answer.started)
        answer.tokens += tokens
        answer.ended = answer.ended or reading.end in lines
        if tally.open:
            tally.tokens += tokens
            read = time.monotonic_ns() // 1000
            # The texts at a response's end repeat the stamps, but without quotes around each.
            tally.latency.extend([read - int(stamp) for stamp in STAMP.findall(lines)])


class Client:
    """One user, with a connection of their own."""

    def __init__(self, base: str, model: str, tally: Tally, reading: Reading = RESPONSES) -> None:
        self.model, self.tally = model, tally
        self._reading = reading
        parts = urlsplit(base)
        self._host, self._port, self._path = parts.hostname or "", parts.port or 80, parts.path
        self._connection: Connection | None = None

    async def call(self, method: str, path: str, body: Json | None = None) -> Answer:
        data = b"" if body is None else msgspec.json.encode(body)
        head = [f"{method} {self._path}{path} HTTP/1.1", f"host: {self._host}:{self._port}"]
        head.append("authorization: Bearer sk-bench")
        if body is not None:
            head += ["content-type: application/json", f"content-length: {len(data)}"]
        if self._connection is None or not self._connection.alive:
            loop = asyncio.get_running_loop()
            _, self._connection = await loop.create_connection(
                lambda: Connection(self.tally, self._reading), self._host, self._port
            )
        return await self._connection.ask("\r\n".join([*head, "", ""]).encode() + data)

    async def create(self, **fields: Any) -> Answer:
        return await self.call("POST", "/responses", {"model": self.model, "input": PROMPT, **fields})

    async def counted(self, call: Awaitable[Answer], tokens: int | None = None) -> Answer:
        """Wait for an answer and count it; a stream (where `tokens` is given) must bring all of them, and its end."""
        answer = await call
        if answer.status not in (200, 201, 202):
            raise ConnectionError(f"{answer.status} {answer.body[:200].decode(errors='replace')}")
        if tokens is not None and (not answer.ended or answer.tokens < tokens):
            self.tally.dropped += 1
        elif self.tally.open:
            self.tally.requests += 1
            self.tally.whole.append(now() - answer.started)
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
