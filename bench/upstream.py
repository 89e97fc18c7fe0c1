"""A Chat Completions upstream that is never the bottleneck: every byte is rendered once per shape, then only written.

The model's name chooses the shape of the answer; all letters are optional and may stand in any order:

    fake-n300-d20-t1    300 tokens, 20 ms apart, each one the time at which it was written
    n  tokens (100)                  d  milliseconds between tokens (0: the whole answer in one write)
    s  characters per token (5)      f  milliseconds before the first token (0)
    t1 tokens are time stamps        w1 one write per token even without a delay
    x  cut the connection after so many tokens
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import httptools
import msgspec
import uvloop

CREATED = 1_700_000_000
LISTED = ("fake-n1-d0", "fake-n100-d0", "fake-n100-d20-t1", "fake-n300-d20-t1", "fake-n60-d100-t1")
# Microseconds of CLOCK_MONOTONIC, so that a client on the same machine can measure the time of an event's whole way.
STAMP = "@%015d@"

_encode = msgspec.json.encode


def token(index: int, size: int = 5) -> str:
    return f" {index % 10_000:04d}"[:size].ljust(size, "x")


def text_of(count: int, size: int = 5) -> str:
    """Return the text that a client must have read in the end, unless the tokens are stamps."""
    return "".join(token(i, size) for i in range(count))


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Shape:
    """One kind of answer, rendered down to the bytes on the wire."""

    def __init__(self, model: str) -> None:
        letters = dict(re.findall(r"-([a-z])(\d+)(?=-|$)", model.rsplit("/", 1)[-1]))
        self.count, self.delay, size = (int(letters.get(k, d)) for k, d in (("n", 100), ("d", 0), ("s", 5)))
        self.first, self.cut = int(letters.get("f", 0)), int(letters.get("x", 0))
        self.stamped = letters.get("t", "0") != "0"
        self.paced = bool(self.delay or self.first or self.cut or self.stamped or letters.get("w", "0") != "0")
        self._common = {"id": "chatcmpl-fake", "created": CREATED, "model": model}
        usage = {"prompt_tokens": 10, "completion_tokens": self.count, "total_tokens": 10 + self.count}

        start = self._event({"role": "assistant", "content": ""})
        stop, tally = self._event({}, finish="stop"), self._event(usage=usage)
        done = _http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self.head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + start
        )
        self.ends = (stop + done, stop + tally + done)  # without and with usage
        self.chunks = [self._event({"content": token(i, size)}) for i in range(self.count)]
        joined = b"".join(self.chunks)
        self.whole = tuple(self.head + joined + end for end in self.ends)
        before, after = self._event({"content": STAMP % 0}).split((STAMP % 0).encode())
        self._before, self._after = before + b"@", b"@" + after

        message = {"role": "assistant", "content": text_of(self.count, size)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {**self._common, "object": "chat.completion", "choices": [choice], "usage": usage}
        self.plain = http_answer(_encode(body))

    def _event(self, delta: Any = None, finish: str | None = None, usage: Any = None) -> bytes:
        body: dict[str, Any] = {**self._common, "object": "chat.completion.chunk", "choices": []}
        if delta is not None:
            body["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
        if usage is not None:
            body["usage"] = usage
        return _http_chunk(b"data: " + _encode(body) + b"\n\n")

    def chunk(self, index: int) -> bytes:
        if self.stamped:
            return b"%b%015d%b" % (self._before, time.monotonic_ns() // 1000, self._after)
        return self.chunks[index]


@cache
def shape_of(model: str) -> Shape:
    return Shape(model)


class Pace:
    """Calls things at a millisecond: one timer for every stream of the process."""

    def __init__(self) -> None:
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._last = 0
        self._ticking = False

    @staticmethod
    def now() -> int:
        return time.monotonic_ns() // 1_000_000

    def at(self, millisecond: int, call: Callable[[], None]) -> None:
        if not self._ticking:
            self._ticking, self._last = True, self.now()
            asyncio.get_running_loop().call_later(0.001, self._tick)
        self._due.setdefault(max(millisecond, self._last + 1), []).append(call)

    def _tick(self) -> None:
        passed, self._last = self._last, self.now()
        for millisecond in range(passed, self._last + 1):
            for call in self._due.pop(millisecond, ()):
                call()
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(0.001, self._tick)


class Stream:
    """One paced answer, on an absolute schedule, so that a late token does not delay the next."""

    __slots__ = ("_connection", "_due", "_next", "_shape", "_usage")

    def __init__(self, connection: Connection, shape: Shape, usage: bool) -> None:
        self._connection, self._shape, self._usage, self._next = connection, shape, usage, 0
        self._due = Pace.now() + shape.first
        connection.write(shape.head)
        if shape.first:
            connection.pace.at(self._due, self.step)
        else:
            self.step()

    def step(self) -> None:
        connection, shape = self._connection, self._shape
        if not connection.alive:
            return
        if shape.cut and self._next == shape.cut:
            connection.abort()
        elif self._next == shape.count:
            connection.write(shape.ends[self._usage])
            connection.finish()
        else:
            connection.write(shape.chunk(self._next))
            self._next += 1
            self._due += shape.delay
            if shape.delay:
                connection.pace.at(self._due, self.step)
            else:
                asyncio.get_running_loop().call_soon(self.step)


class Ask(msgspec.Struct):
    """The fields of a request that are read."""

    model: str = "fake"
    stream: bool = False
    stream_options: dict[str, bool] | None = None


_decode = msgspec.json.Decoder(Ask).decode


class Connection(asyncio.Protocol):
    """One client. Requests are answered one at a time; no load here pipelines."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url, self._body = b"", bytearray()

    @property
    def alive(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def on_message_begin(self) -> None:
        self._url, self._body = b"", bytearray()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if b"/chat/completions" in self._url and self._parser.get_method() == b"POST":
            self._answer(_decode(self._body))
        elif b"/models" in self._url:
            data = [{"id": name, "object": "model", "created": CREATED, "owned_by": "fake"} for name in LISTED]
            self.write(http_answer(_encode({"object": "list", "data": data})))
        else:
            self.write(http_answer(b'{"error":{"message":"no such route"}}', "404 Not Found"))

    def _answer(self, ask: Ask) -> None:
        shape = shape_of(ask.model)
        usage = bool((ask.stream_options or {}).get("include_usage"))
        if not ask.stream:
            self.write(shape.plain)
        elif shape.paced:
            Stream(self, shape, usage)
        else:
            self.write(shape.whole[usage])


async def serve(port: int) -> None:
    loop, pace, stop = asyncio.get_running_loop(), Pace(), asyncio.Event()
    server = await loop.create_server(lambda: Connection(pace), "127.0.0.1", port, backlog=4096)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    print(f"fake upstream on http://127.0.0.1:{port}/v1, process {os.getpid()}", flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9100)
    uvloop.run(serve(parser.parse_args().port))
