"""A lean HTTP/1.1 client, through which every token comes: it sends a request and passes the answer on as it arrives.

A general client costs as much per chunk as all the rest of the path together; an upstream needs little of what it does.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

import httptools

from outlive.core.requests.body import EncodedBody
from outlive.dialects.transport.route import Proxy, Route

CONNECT_SECONDS = 30.0
IDLE_SECONDS = 60.0  # until an unused connection is closed
WATCH_SECONDS = 1.0  # between two looks for silent ones, or less
# Bytes that may wait to be read before reading from the socket stops.
MOST_BUFFERED = 256 * 1024
# Bytes that one read of a compressed answer may become.
MOST_INFLATED = 16 * 1024 * 1024
# Bytes of a head, or of anything else that is no part of a body, in one go.
MOST_HEAD = 256 * 1024

Origin = tuple[str, int, bool]  # host, port, TLS
OnPiece = Callable[[bytes], bool]  # False: pass no more


class BadUrl(ValueError):
    """This is no http or https URL."""


class ConnectFailed(ConnectionError):
    """No connection could be made; `__cause__` is the reason."""


class ProxyFailed(ConnectFailed):
    """The proxy could not be reached, or it answered a CONNECT with another status than 200."""

    def __init__(self, status: int | None = None) -> None:
        self.status = status


class ConnectionBroken(ConnectionError):
    """The connection ended before the answer did, or what came is not HTTP."""


class AnswerTooLong(ConnectionBroken):
    """The answer, or a part of it, is longer than this server takes. Asking again would not help."""


class Unanswered(ConnectionBroken):
    """The connection ended before the first byte of an answer; the request may be sent again on a new one."""


@lru_cache(maxsize=256)
def _locate(url: str) -> tuple[Origin, str, str]:
    """Return the origin of a URL, its Host header, and the target there."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadUrl(url)
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return (parts.hostname, parts.port or (443 if tls else 80), tls), parts.netloc.rpartition("@")[2], target


class HttpPool:
    """Idle connections that can be used again, by origin; those of other routes are in pools of their own."""

    def __init__(self, route: Route | None = None) -> None:
        self._route = route or Route()
        self._others: list[HttpPool] = []
        self._idle: defaultdict[Origin, list[Connection]] = defaultdict(list)  # the longest idle first
        self._sweep: asyncio.TimerHandle | None = None
        self.watched: set[Connection] = set()  # those that must not be silent for long
        self._is_watching = False

    def via(self, route: Route) -> HttpPool:
        """Return the pool for requests that take this route. It is closed with this one."""
        if route.proxy is None and not route.files:
            return self
        self._others.append(HttpPool(route))
        return self._others[-1]

    async def request(
        self, method: str, url: str, headers: bytes, body: EncodedBody = b"", read_timeout: float | None = None
    ) -> Connection:
        """Send a request and wait for the head of its answer. `headers` are whole lines, each with its end.

        A body in pieces is long: its list is empty once it was sent. TimeoutError is raised where the answer is waited
        for when nothing came for `read_timeout` seconds.
        """
        origin, host, target = _locate(url)
        whole, pieces = (body, []) if isinstance(body, bytes) else (b"", body)
        length = f"Content-Length: {len(whole) + sum(map(len, pieces))}\r\n" if method == "POST" else ""
        if self._route.proxy is not None and not origin[2]:
            target, length = f"http://{host}{target}", length + self._route.proxy.authorization
        head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{length}"
        message = b"%b%b\r\n%b" % (head.encode(), headers, whole)
        while True:
            # Pieces are sent on a new connection, only once, so that nothing holds them while the model thinks.
            idle = self._idle[origin] if not pieces else []
            fresh = not idle
            connection = idle.pop() if idle else await self._connect(origin)
            try:
                connection.send(message, *pieces)
                pieces.clear()
                if read_timeout is not None:
                    connection.read_timeout = read_timeout
                    self.watched.add(connection)
                    if not self._is_watching:
                        self._find_silent()
                await connection.wait_head()
                return connection
            except Unanswered:
                # A server may close an idle connection at the moment in which it is used again; a new one will do.
                if fresh:
                    raise

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for idle in self._idle.values():
            for connection in list(idle):
                connection.close()
        for pool in self._others:
            pool.close()

    def keep(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._idle[connection.origin].append(connection)
        if self._sweep is None:
            # One timer for all: one for each would be set and cancelled with every request.
            self._sweep = loop.call_later(IDLE_SECONDS, self._close_idle, loop)

    def _close_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for idle in self._idle.values():
            for connection in [each for each in idle if now - each.heard_at >= IDLE_SECONDS]:
                connection.close()
        left = [idle[0].heard_at + IDLE_SECONDS - now for idle in self._idle.values() if idle]
        # Those just closed are removed from the pool in a moment, by `connection_lost`.
        self._sweep = loop.call_later(max(min(left), 1.0), self._close_idle, loop) if left else None

    def _find_silent(self) -> None:
        # One timer for all, like that of idle ones.
        loop = asyncio.get_running_loop()
        for connection in list(self.watched):
            if loop.time() - connection.heard_at > connection.read_timeout:
                connection.fail(TimeoutError())
        self._is_watching = bool(self.watched)
        if self.watched:
            least = min(connection.read_timeout for connection in self.watched)
            loop.call_later(min(least / 8, WATCH_SECONDS), self._find_silent)

    def drop(self, connection: Connection) -> None:
        self.watched.discard(connection)
        idle = self._idle[connection.origin]
        if connection in idle:
            idle.remove(connection)

    async def _connect(self, origin: Origin) -> Connection:
        host, port, tls = origin
        proxy = self._route.proxy
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                secure = tls or (proxy is not None and proxy.tls)
                context = await asyncio.to_thread(self._route.find_context) if secure else None
                if proxy is None:
                    return await self._open(origin, host, port, context)
                return await self._connect_through(proxy, origin, context)
        except ConnectFailed:
            raise
        except OSError as error:
            raise ConnectFailed from error

    async def _connect_through(self, proxy: Proxy, origin: Origin, context: ssl.SSLContext | None) -> Connection:
        host, port, tls = origin
        try:
            connection = await self._open(origin, proxy.host, proxy.port, context if proxy.tls else None)
            if not tls or context is None:
                return connection
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            lines = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{proxy.authorization}\r\n"
            connection.send(lines.encode())
            await connection.wait_head()
        except OSError as error:
            raise ProxyFailed from error
        if connection.status != 200:
            connection.close()
            raise ProxyFailed(connection.status)
        return await connection.start_tls(context)

    async def _open(
        self, origin: Origin, host: str, port: int, context: ssl.SSLContext | None, name: str | None = None
    ) -> Connection:
        """Open a connection. `name`: the one in the certificate, where `host` is an address."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self, origin, loop), host, port, ssl=context, server_hostname=name if context else None
        )
        return connection


class Connection(asyncio.Protocol):
    """One connection, and the one answer that it is carrying."""

    def __init__(self, pool: HttpPool, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # without a function in Python, for it is called with each piece
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._buffered = 0
        self._bodiless = 0  # bytes since the last that were part of a body
        self.is_complete = self._head_done = self._reusable = self._paused = False
        self._lent = False  # it carries an answer that is in use
        self._on_piece: OnPiece | None = None  # is passed what comes, instead of a task being woken for it
        self._inflater: zlib._Decompress | None = None  # of an answer that is compressed, though none was asked for
        self._error: BaseException | None = None
        self.heard_at = 0.0  # time of the last bytes, or of the request
        self.read_timeout = 0.0  # seconds for which it may be silent while it is watched

    # -- asking and reading

    def send(self, *parts: bytes) -> None:
        """Send a request."""
        if self._transport is None or self._transport.is_closing():
            raise Unanswered("The connection was closed.")
        self._lent = True
        self.status, self.headers, self._bodiless, self._buffered = 0, {}, 0, 0
        self.is_complete = self._head_done = self._reusable = False
        self.heard_at = self._loop.time()
        for part in parts:
            self._transport.write(part)

    async def wait_head(self) -> None:
        """Wait for the head of the answer. If that fails, or the task is cancelled, the connection is closed."""
        failed = True  # also when the head came in the very moment of a cancellation
        try:
            while not self._head_done:
                await self._wait()
            failed = False
        finally:
            if failed:
                self.close()

    async def start_tls(self, context: ssl.SSLContext) -> Connection:
        """Return the connection to the origin in the tunnel that this one has become."""
        if self._transport is None:
            raise ConnectionBroken("The proxy closed the connection.")
        inner = Connection(self._pool, self.origin, self._loop)
        # Unlike `create_connection`, it does not call `connection_made`.
        inner._transport = await self._loop.start_tls(self._transport, inner, context, server_hostname=self.origin[0])
        return inner

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_encoded(self) -> bool:
        """True if the body is compressed in a way that is not undone here."""
        return self.headers.get("content-encoding", "identity") != "identity"

    async def read_start(self, most: int) -> bytes:
        """Return the rest of the answer, or about `most` bytes of it."""
        pieces: list[bytes] = []
        while most > 0 and (piece := await self.read()):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    async def read_whole(self, most: int) -> bytes:
        """Return the rest of the answer. Raises AnswerTooLong for more than `most` bytes."""
        whole = await self.read_start(most + 1)
        if len(whole) > most:
            raise AnswerTooLong(f"The answer has more than {most} bytes.")
        return whole

    async def read(self) -> bytes:
        """Return what has come since the last call, as one piece; empty at the end of the answer."""
        while not (self._pieces and (piece := self._collect())):
            if self.is_complete:
                return b""
            await self._wait()
        return piece

    async def forward_to(self, on_piece: OnPiece) -> None:
        """Pass what comes to `on_piece` in the call that reads it, which saves waking a task. Return when that returns
        False, or when the answer has ended or broken: `read` goes on from there. An error of `on_piece` is raised here.
        """
        if self._pieces or self.is_complete:
            return
        self._on_piece = on_piece
        try:
            await self._wait()
        finally:
            self._on_piece = None

    def _collect(self) -> bytes:
        piece, self._buffered = b"".join(self._pieces), 0
        self._pieces.clear()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        if self._inflater is not None:
            try:
                piece = self._inflater.decompress(piece, MOST_INFLATED)
            except zlib.error:
                raise ConnectionBroken("What came is not what its Content-Encoding says.") from None
            if self._inflater.unconsumed_tail:
                raise AnswerTooLong("The answer is too large when it is inflated.")
        return piece

    def fail(self, error: BaseException) -> None:
        """Raise this error in the task that reads."""
        self._error = error
        self._wake()

    def leave(self) -> None:
        """Release the answer: the connection returns to the pool if the answer is over, else it is closed."""
        if not self._lent:
            return  # twice in the pool, it would carry two answers at once
        self._lent = False
        self._pool.watched.discard(self)
        is_usable = self._reusable and self._error is None and not self._paused  # paused, it would read no answer
        if self.is_complete and is_usable and self._transport is not None:
            self._pieces.clear()
            self._parser = httptools.HttpResponseParser(self)
            self._pool.keep(self, self._loop)
        else:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> asyncio.Future[None]:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self, error: Exception | None = None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._lent:
            self.close()  # without a request: it would be taken for the next answer
            return
        self.heard_at = self._loop.time()
        self._buffered += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._error = ConnectionBroken("What came is not HTTP.")
            self.close()
        if self._pieces:
            self._bodiless = 0
        elif not self.is_complete:
            self._bodiless += len(data)
            if self._bodiless > MOST_HEAD:  # its head, trailers or chunk sizes do not end
                self._error = AnswerTooLong("The head of the answer does not end.")
                self.close()
        if self._on_piece is not None and not self.is_complete and self._error is None:
            try:
                if not self._pieces or self._on_piece(self._collect()):
                    return
                self._on_piece = None
                self._wake()
            except Exception as error:  # of the run: it belongs to the task in `forward_to`, not to the loop
                self._on_piece = None
                self._wake(error)
            return
        if self._buffered > MOST_BUFFERED and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.drop(self)
        ends_here = "content-length" not in self.headers and "transfer-encoding" not in self.headers
        if self._head_done and not self.is_complete and exc is None and ends_here:
            self.is_complete = True
        elif not self.is_complete and self._error is None:
            self._error = (ConnectionBroken if self.status else Unanswered)("The connection broke.")
        self._wake()

    # -- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._head_done = self.status >= 200  # an interim answer (1xx) is not the answer
        self._inflater = None
        if self.headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate"):
            del self.headers["content-encoding"]
            self._inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # finds out by itself which of them it is

    def on_message_complete(self) -> None:
        if self._head_done:
            self.is_complete = True
            self._reusable = self._parser.should_keep_alive()  # known to the parser only now
        else:
            self.headers = {}
