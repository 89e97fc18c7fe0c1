"""uvicorn's HTTP protocol, with the head of an answer sent together with the first bytes of its body."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class Joined:
    """A transport that keeps the head of an answer back until its body begins: one system call less per request."""

    __slots__ = ("_head", "_loop", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
            self._write(data)
        elif data[:5] == b"HTTP/":
            self._head = data
            # Nobody may wait for a head whose body has not begun by the end of this round.
            self._loop.call_soon(self._flush)
        else:
            self._write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _pour(cycle: RequestResponseCycle, body: bytes) -> bool:
    """Write a piece of a streamed body on the spot; False when the client is slow or gone, and nothing was written."""
    if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
    return True


class Protocol(HttpToolsProtocol):
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope["state"]["outlive.pour"] = partial(_pour, cycle)
        super()._start_asgi_task(cycle, app)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joined(transport, self.loop))  # type: ignore[arg-type]
