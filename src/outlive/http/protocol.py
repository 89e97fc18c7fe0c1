"""uvicorn's HTTP protocol with bounds on what clients send, and a shorter path for writes: fewer system calls, and no
task for most events. Everything private of uvicorn that Outlive uses is used here."""

import asyncio
import codecs
import math
import socket
from collections.abc import Callable
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from outlive.http.connections import ClientConnection, ConnectionLimits, Connections
from outlive.http.errors import envelope, type_of_status
from outlive.http.transport import ClientTransport, FrameSplitter

# Bytes of a request line with its headers, and of what stands between two pieces of a body or behind it.
MAX_HEAD_BYTES = 64 * 1024
# Bytes that are parsed at once, of a head or of a body in chunks: in the worst case a millisecond's work.
PIECE_BYTES = 4 * 1024
# The same for frames of a WebSocket, which are parsed in Python.
FRAME_PIECE_BYTES = 512
# Bytes of messages that have not come whole, on all WebSockets together.
MAX_UNFINISHED = 128 * 1024 * 1024
# A body must come faster than this on average, after the seconds that any body may take.
MIN_BYTES_PER_SECOND = 4 * 1024
# Requests that wait on one connection for the answers to those before them. What follows is not parsed yet.
MAX_PIPELINED = 4
# Seconds and bytes for which a refused client may go on sending: closed at once, it would lose the answer to a reset.
LINGER_SECONDS = 2.0
LINGER_BYTES = 1024 * 1024

# Seconds after which a client that sends nothing counts as having read its answer. Its retry waits for longer than that
# (RETRY_WAIT_SECONDS in engine/retries), or it would not learn of it.
READING_SECONDS = 0.5
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)


class RequestConnection(ClientConnection):
    """The connection under one request."""

    __slots__ = ("_cycle", "_reaction", "_refused")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._cycle = cycle
        self._reaction: asyncio.Future[bool] | None = None  # resolved by what the client does after its answer
        self._refused = False

    def write_now(self, body: bytes) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def answer_now(self, status: int, headers: bytes, body: bytes) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        cycle.response_started = cycle.response_complete = True
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        answer = b"%b%bcontent-length: %d\r\n%b%b" % (STATUS_LINE[status], headers, len(body), end, body)
        cycle.transport.write_whole(answer)  # type: ignore[attr-defined]
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    def is_hung_up(self) -> bool:
        transport = self._cycle.transport
        if self.is_cut or transport.is_closing():
            return True
        # Peek at what waits to be read, and leave it there.
        peeking = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, transport.get_extra_info("socket").fileno())
        try:
            return peeking.recv(1, _PEEK) == b""
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
        loop, left = asyncio.get_running_loop(), self._count_unconfirmed()
        while True:
            # (asyncio.wait would take several times as much CPU time, and this is once per response.)
            self._reaction = loop.create_future()
            timer = loop.call_later(READING_SECONDS, self.react, False)
            try:
                if await self._reaction:
                    return not self._refused
            finally:
                timer.cancel()
            before, left = left, self._count_unconfirmed()
            if left == 0 or left >= before:
                return left == 0

    def react(self, reacted: bool = True, *, refused: bool = False) -> None:
        """Note that the client has sent another request or is gone, or that it has done neither in time."""
        self._refused = self._refused or refused
        if self._reaction is not None and not self._reaction.done():
            self._reaction.set_result(reacted)

    def on_eof(self) -> None:
        """Note that the client has closed its side. If not everything had reached it by then, it has not read that."""
        if self._reaction is not None and self._count_unconfirmed():
            self.react(refused=True)

    def _count_unconfirmed(self) -> int:
        transport = self._cycle.transport
        return 0 if transport.is_closing() else transport.count_unconfirmed()  # type: ignore[attr-defined]

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

    transport: ClientTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = connections
        self._waiting_since: float | None = None  # for the rest of a head or body
        self._idle_since = math.inf  # while no request is being answered
        self._body_size = 0  # bytes received so far
        self._connection: RequestConnection | None = None  # of the request that is being answered
        self._overhead = 0  # bytes of the head so far, or since the last piece of the body
        self._in_body = False
        self._body_left = 0  # bytes of a body whose length was declared
        self._is_websocket = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(ClientTransport(transport, self._open.turns, self._feed))  # type: ignore[arg-type]
        address = self.client[0] if self.client else ""
        if (excess := self._open.find_excess(address)) is not None:
            self._answer(503, excess, code="too_many_connections")
            self.transport.close()
            return
        self._open.add(self.check, address)
        self._waiting_since = self.loop.time()

    def eof_received(self) -> None:
        if self._connection is not None:
            self._connection.on_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._connection is not None:
            self._connection.cut()
            self._connection.react(refused=exc is not None)
            self._connection = None
        self.transport.drop()
        self._open.remove(self.check)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._connection is not None:
            self._connection.react()
        self._idle_since = math.inf
        self._connection = cycle.scope["state"]["outlive.connection"] = RequestConnection(cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on to the next request, as uvicorn does, but without a timer: `check` ends idle connections."""
        self.server_state.total_requests += 1
        self._idle_since = self.loop.time()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            self.transport.resume_reading()  # requests behind this one may not be parsed yet

    def check(self, now: float, limits: ConnectionLimits) -> None:
        """End the connection of a client that sends or reads too slowly. A stream can be resumed on another one."""
        if self.transport.reset_if_stalled(now, limits.send_seconds):
            return
        if self._waiting_since is None:
            if now - self._idle_since > self.timeout_keep_alive:
                self.transport.close()
        elif self.transport.is_paused:
            self._waiting_since = now  # it is not the client who makes it wait
        elif now - self._waiting_since > limits.receive_seconds + self._body_size / MIN_BYTES_PER_SECOND:
            self._waiting_since = None
            if self._overhead or self._in_body:
                self._refuse(408, "The rest of the request did not come in time.", code="request_timeout")
            else:
                self.transport.close()

    # -- what the client sends

    def data_received(self, data: bytes) -> None:
        self.transport.take(data)

    def _feed(self, data: bytes, start: int) -> int:
        """Parse one piece, which ends at most one head, so that pipelined requests can be held. Return its length."""
        if len(self.pipeline) >= MAX_PIPELINED:
            return 0
        if self._waiting_since is None:
            self._waiting_since = self.loop.time()
        piece = data[start : start + (self._body_left or min(PIECE_BYTES, MAX_HEAD_BYTES - self._overhead))]
        # Heads, and bodies in chunks, end with an empty line.
        if not self._body_left and (found := piece.find(b"\r\n\r\n")) >= 0:
            piece = piece[: found + 4]
        self._overhead += len(piece)  # the parser's callbacks set it back
        super().data_received(piece)
        if self._overhead >= MAX_HEAD_BYTES:
            message = f"The request's line and headers, or its trailers, are over {MAX_HEAD_BYTES} bytes."
            self._refuse(431, message, code="headers_too_large")
        return len(piece)

    def on_headers_complete(self) -> None:
        self._overhead = 0
        upgrades = self.parser.should_upgrade()
        self._is_websocket = upgrades and self.parser.get_method() == b"GET" and super()._should_upgrade()
        if upgrades and not self._is_websocket:
            return  # the body would not be parsed: `_unsupported_upgrade_warning` begins anew
        self._in_body = True
        self._waiting_since = self.loop.time()
        self._body_left = int(dict(self.headers).get(b"content-length", 0))
        super().on_headers_complete()
        self.headers = []  # of the trailers, which are not used; those of the head are in the scope

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        self._body_size += len(body)
        if self._body_left:
            self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = self._body_size = 0
        self._in_body = False
        self._waiting_since = None
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return self._is_websocket

    def handle_websocket_upgrade(self) -> None:
        self.transport.drop()
        super().handle_websocket_upgrade()
        self._open.remove(self.check)

    def _unsupported_upgrade_warning(self) -> None:
        """Parse the request again without the upgrade that it asks for, and that this server does not offer."""
        version = self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
        try:
            self.parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # CONNECT is always an upgrade
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is not a valid HTTP request.", code="invalid_http")

    def _refuse(self, status: int, message: str, *, code: str) -> None:
        """Answer what is no request, if an answer can be sent now, and take nothing more."""
        self.transport.drop()
        if self._in_body:
            answerable = not self.pipeline and not self.cycle.response_started
        else:
            answerable = self._connection is None or self.cycle.response_complete
        if not answerable:
            self.transport.close()
            return
        if self._in_body and self._connection is not None:
            self._connection.cut()
        self._answer(status, message, code=code)
        self.transport.write_eof()
        self.transport.feed = self._linger
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _linger(self, data: bytes, start: int) -> int:
        self._overhead += len(data) - start
        if self._overhead > LINGER_BYTES:
            self.transport.abort()
        return len(data) - start

    def _answer(self, status: int, message: str, *, code: str) -> None:
        if status != 400:
            self._open.security.count("limit hit", self.client[0] if self.client else "", code=code)
        body = msgspec.json.encode(envelope(message, type_of_status(status), None, code))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
        self.transport.write(b"%b%b\r\n\r\n%b" % (STATUS_LINE[status], head, body))


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol of WebSockets, which keeps little of what a client sends and does not read."""

    transport: ClientTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open = connections
        self._splitter = FrameSplitter(self.config.ws_max_size)
        self._utf8 = codecs.getincrementaldecoder("utf-8")()  # checks a message in fragments
        self._unfinished = 0  # bytes of a message that has not come whole
        self._pong = b""  # the answer to the last ping, held until the client reads

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._open.add(self.check, self.client[0] if self.client else "")
        self.transport.feed = self._feed

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open.remove(self.check)
        self._count_unfinished(0)
        self.transport.drop()

    def check(self, now: float, limits: ConnectionLimits) -> None:
        """End the connection of a client that does not read."""
        self.transport.reset_if_stalled(now, limits.send_seconds)

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self.transport.take(data)
            return
        super().data_received(data)  # the head, as the HTTP protocol hands it over
        if not self.handshake_initiated:
            self.transport.write(STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()

    def _feed(self, data: bytes, start: int) -> int:
        # The payload of a frame is no work for the parser.
        size = max(FRAME_PIECE_BYTES, min(self._splitter.left, PIECE_BYTES))
        piece = data[start : start + size]
        super().data_received(self._splitter.split(piece))
        return len(piece)

    def handle_cont(self, event: Frame) -> None:
        # Joined at once: a list of tiny fragments takes far more memory than the message.
        message: Any = self.frames[0]
        if type(message) is bytes:
            self._utf8.reset()
            self._check_text(message, final=False)
            message = bytearray(message)
        message += event.data
        self.frames = [message]
        self._count_unfinished(0 if event.fin else len(message))
        if self._open.unfinished > MAX_UNFINISHED:
            self._refuse(1013)  # try again later
        elif self._check_text(bytes(event.data), final=event.fin) and event.fin:
            # As bytes, even if it is text: decoding all of a large message would be a long step.
            self.curr_msg_data_type = "bytes"
            self.send_receive_event_to_app()

    def _check_text(self, fragment: bytes, *, final: bool) -> bool:
        """Close the connection and return False if a fragment of a text is not UTF-8."""
        try:
            if self.curr_msg_data_type == "text":
                self._utf8.decode(fragment, final)
        except UnicodeDecodeError:
            self._refuse(1007)
            return False
        return True

    def _count_unfinished(self, size: int) -> None:
        """Count the bytes of a message that has not come whole, with those of all other connections."""
        self._open.unfinished += size - self._unfinished
        self._unfinished = size

    def _refuse(self, code: int) -> None:
        self.conn.send_close(code)
        self.handle_parser_exception()

    def handle_ping(self) -> None:
        if pongs := self.conn.data_to_send():
            if self.writable.is_set():
                self.transport.write(b"".join(pongs))
            else:
                self._pong = pongs[-1]  # only the last ping has to be answered (RFC 6455, 5.5.3)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pong:
            pong, self._pong = self._pong, b""
            self.transport.write(pong)


PROTOCOLS = {"http": Protocol, "ws": WebSocketProtocol}  # by the options of uvicorn.Config
