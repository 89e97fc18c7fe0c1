"""uvicorn's HTTP protocol, with a shorter way for what is sent: fewer system calls, and no task for most events."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from outlive.http.connection import ClientConnection

# How long a client that says nothing may still turn out not to have read its answer. Its retry waits for longer than
# that (RETRY_PATIENCE_SECONDS in engine/admission), or it would not hear of it.
TAKING_SECONDS = 0.5


class HeaderCoalescingTransport:
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


class RequestConnection(ClientConnection):
    __slots__ = ("_cycle", "_heard", "_refused")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._cycle = cycle
        self._heard: asyncio.Future[None] | None = None  # what tells whether the answer was taken
        self._refused = False

    def write_now(self, body: bytes) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def has_hung_up(self) -> bool:
        transport = self._cycle.transport
        if self.is_cut or transport.is_closing():
            return True
        # A look at what waits to be read, which leaves it there.
        peeking = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, transport.get_extra_info("socket").fileno())
        try:
            return peeking.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            peeking.detach()

    async def is_taken(self) -> bool:
        """One that asks for something else has read it, and so has one that leaves in an orderly way. A system that is
        left with bytes nobody read says so instead: that client gave up just before they came. Of one that keeps silent
        it counts that its system has it all."""
        if self.is_cut:
            return False
        self._heard = asyncio.get_running_loop().create_future()
        left = self._count_unreceived()
        while not (await asyncio.wait([self._heard], timeout=TAKING_SECONDS))[0]:
            before, left = left, self._count_unreceived()
            if left == 0 or left >= before:
                return left == 0
        return not self._refused

    def on_chunks(self, *, refused: bool = False) -> None:
        """The client has asked for something else, or gone."""
        self._refused = self._refused or refused
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def hear_goodbye(self) -> None:
        """The client says nothing more. If not everything had reached it by then, it has not read that."""
        if self._heard is not None and self._count_unreceived():
            self.on_chunks(refused=True)

    def _count_unreceived(self) -> int:
        """Bytes that the client's system has not confirmed, as far as the own one tells."""
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
            self._cycle.flow.resume_reading()  # a large body may have stopped it, and nobody would see the client go

    def cut(self) -> None:
        # uvicorn tells only the newest request of a connection, and another may be waiting behind this one.
        self._cycle.disconnected = not self._cycle.response_complete
        self._cycle.message_event.set()
        super().cut()


class Protocol(HttpToolsProtocol):
    _outlet: RequestConnection | None = None  # of the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(HeaderCoalescingTransport(transport, self.loop))  # type: ignore[arg-type]

    def eof_received(self) -> None:
        if self._outlet is not None:
            self._outlet.hear_goodbye()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._outlet is not None:
            self._outlet.cut()
            self._outlet.on_chunks(refused=exc is not None)
            self._outlet = None
        self._unset_keepalive_if_required()  # which after a reset would keep everything for as long as it runs

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._outlet is not None:
            self._outlet.on_chunks()
        self._outlet = cycle.scope["state"]["outlive.outlet"] = RequestConnection(cycle)
        super()._start_asgi_task(cycle, app)
