"""uvicorn's HTTP protocol with a shorter path for writes: fewer system calls, and no task for most events."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Seconds after which a client that sends nothing counts as having read its answer. Its retry waits for longer than that
# (RETRY_PATIENCE_SECONDS in engine/retries), or it would not learn of it.
READING_SECONDS = 0.5


class ClientConnection:
    """A connection to a client. By itself it offers nothing beyond ASGI, and never breaks."""

    __slots__ = ("_on_cut", "is_cut")

    def __init__(self) -> None:
        self.is_cut = False  # the client is gone
        self._on_cut: Callable[[], None] | None = None

    def write_now(self, body: bytes) -> bool:
        """Write a piece of a streamed body at once, or write nothing and return False: the client is slow or gone."""
        return False

    def is_hung_up(self) -> bool:
        """Return True if the client is gone, also if only the operating system knows that by now."""
        return self.is_cut

    def watch(self, on_cut: Callable[[], None] | None) -> None:
        """Call `on_cut` once the client is gone, which `send` does not report; at once if it is. None stops that."""
        self._on_cut = on_cut
        if self.is_cut and on_cut is not None:
            on_cut()

    async def was_read(self) -> bool:
        """Return True if the client has read the whole answer, as far as can be known. Call after the last send."""
        return True

    def cut(self) -> None:
        """Note that the client is gone."""
        self.is_cut = True
        if self._on_cut is not None:
            self._on_cut()


class HeaderCoalescingTransport:
    """A transport that holds the head of an answer until its body begins: one system call less per request."""

    __slots__ = ("_head", "_loop", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data[:5] == b"HTTP/":
            self._head = data
            # A head whose body does not begin in this iteration of the loop is sent alone.
            self._loop.call_soon(self._flush)
            return
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


class RequestConnection(ClientConnection):
    """The connection under one request."""

    __slots__ = ("_cycle", "_reaction", "_refused")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._cycle = cycle
        self._reaction: asyncio.Future[None] | None = None  # resolved by what the client does after its answer
        self._refused = False

    def write_now(self, body: bytes) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def is_hung_up(self) -> bool:
        transport = self._cycle.transport
        if self.is_cut or transport.is_closing():
            return True
        # Peek at what waits to be read, and leave it there.
        peeking = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, transport.get_extra_info("socket").fileno())
        try:
            return peeking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            peeking.detach()

    async def was_read(self) -> bool:
        """Judge by what the client does next. One that sends another request, or closes in order, has read the answer.
        A reset means unread bytes: that client gave up just before they came. One that stays silent has read it if
        its system has confirmed every byte."""
        if self.is_cut:
            return False
        self._reaction = asyncio.get_running_loop().create_future()
        left = self._count_unconfirmed()
        while not (await asyncio.wait([self._reaction], timeout=READING_SECONDS))[0]:
            before, left = left, self._count_unconfirmed()
            if left == 0 or left >= before:
                return left == 0
        return not self._refused

    def react(self, *, refused: bool = False) -> None:
        """Note that the client has sent another request, or is gone."""
        self._refused = self._refused or refused
        if self._reaction is not None and not self._reaction.done():
            self._reaction.set_result(None)

    def on_eof(self) -> None:
        """Note that the client has closed its side. If not everything had reached it by then, it has not read that."""
        if self._reaction is not None and self._count_unconfirmed():
            self.react(refused=True)

    def _count_unconfirmed(self) -> int:
        """Count the bytes that the client's system has not confirmed, as far as this one knows."""
        transport = self._cycle.transport
        if transport.is_closing():
            return 0
        try:
            raw = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            raw = b"\0\0\0\0"
        return int(struct.unpack("i", raw)[0]) + transport.get_write_buffer_size()

    def watch(self, on_cut: Callable[[], None] | None) -> None:
        super().watch(on_cut)
        if on_cut is not None:
            # A large body may have paused it, and the client's end would go unnoticed.
            self._cycle.flow.resume_reading()

    def cut(self) -> None:
        # uvicorn informs only the newest request of a connection, and another may be waiting behind this one.
        self._cycle.disconnected = not self._cycle.response_complete
        self._cycle.message_event.set()
        super().cut()


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, with a RequestConnection for each request."""

    _connection: RequestConnection | None = None  # of the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(HeaderCoalescingTransport(transport, self.loop))  # type: ignore[arg-type]

    def eof_received(self) -> None:
        if self._connection is not None:
            self._connection.on_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._connection is not None:
            self._connection.cut()
            self._connection.react(refused=exc is not None)
            self._connection = None
        self._unset_keepalive_if_required()  # after a reset its timer would keep everything until it fires

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._connection is not None:
            self._connection.react()
        self._connection = cycle.scope["state"]["outlive.connection"] = RequestConnection(cycle)
        super()._start_asgi_task(cycle, app)
