"""A connection to an MCP server: opened when it is first needed, and held by a task of its own until it is closed."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, CallToolResult, Implementation, TextContent, Tool

from outlive import __version__
from outlive.core.events import Json
from outlive.core.redactor import Redactor
from outlive.core.toolcalls import ToolOutcome
from outlive.ports.toolbox import Invocation, ToolProgress, ToolServer
from outlive.tooling.sender import PrivateHost, resolve_public

CONNECT_SECONDS = 15.0
LIST_SECONDS = 20.0
CLOSE_SECONDS = 1.0
# A stream may be silent for so much longer than a call may take: the call's own deadline comes first.
SLACK_SECONDS = 300.0
MAX_PAGES = 50
MAX_TOOLS = 1000
MAX_LIST = 1024 * 1024  # bytes
MAX_DATA = 128 * 1024  # of an image or a sound, in characters of its base64
MAX_BYTES = 4 * 1024 * 1024  # of one answer, or of one event of a stream
# Shared by all connections: to read the certificates takes some 50 ms. This module is imported in a thread.
TLS = httpx2.create_ssl_context(trust_env=False)

# These loggers ("client" is the SDK's, too) write what was sent and where: content and secrets, which no log may hold.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

# The names under which a server finds the key of a call, and whether the call may have been made before.
KEY = "outlive/call-key"
REPEATED = "outlive/repeated"
# Those under which it finds the trace of a call, which headers of the connection cannot name.
TRACE = ("traceparent", "tracestate")


class McpUnreachable(Exception):
    """The server gave no usable answer. The message holds neither an address nor a header."""

    def __init__(self, message: str, status: int | None = None, *, absent: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.absent = absent  # no server is there, whichever transport is tried


class McpConnectionLost(McpUnreachable):
    """The connection broke, or the server was restarted, during a call."""

    def __init__(self, processed: bool) -> None:
        super().__init__("The connection to the server was lost. The call may or may not have taken effect.")
        self.processed = processed  # False: the server is known not to have looked at the request


class McpConnection:
    """Owns the task that holds the connection: the SDK requires the task that opens a connection to close it."""

    def __init__(
        self, server: ToolServer, headers: dict[str, str], *, private: bool, proxy: str | None, slots: asyncio.Semaphore
    ) -> None:
        self._server = server
        self._headers = headers  # that name the response; those of the server win
        self._make_transport = partial(GuardedTransport, private=private, proxy=proxy)
        self._transport = self._make_transport()  # of the last attempt to connect
        self._slots = slots  # of all connections to MCP servers
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._client: asyncio.Future[Client] | None = None
        self._redact = Redactor([server.authorization, *server.headers.values()]).redact

    async def try_list(self) -> tuple[list[Json], str | None]:
        """Return the server's tools as an `mcp_list_tools` item shows them, or the reason why there are none."""
        try:
            async with self._connected() as client, asyncio.timeout(min(LIST_SECONDS, self._server.seconds)):
                return await _list(client), None
        except (MCPError, McpUnreachable) as error:
            return [], self._redact(str(_explain(error)))

    async def call(self, name: str, invocation: Invocation, may_repeat: bool) -> ToolOutcome:
        try:
            try:
                return await self._call(name, invocation, invocation.repeated)
            except McpConnectionLost as lost:
                if lost.processed and not may_repeat:
                    raise
                return await self._call(name, invocation, invocation.repeated or lost.processed)
        except MCPError as error:
            failure = {"type": "mcp_protocol_error", "code": error.code, "message": error.message}
        except McpUnreachable as error:
            failure = {"type": "http_error", "code": error.status or 0, "message": str(error)}
        return ToolOutcome(error=self._redact(failure))

    async def _call(self, name: str, invocation: Invocation, repeated: bool) -> ToolOutcome:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            invocation.report(ToolProgress(progress, total, self._redact(message)))

        trace = {name: text for name, text in invocation.headers.items() if name in TRACE}
        meta: Any = {KEY: invocation.key, REPEATED: repeated, **trace}
        async with self._connected() as client:
            result = await client.call_tool(name, invocation.arguments, progress_callback=report, meta=meta)
        outcome = _read_result(result)
        return ToolOutcome(self._redact(outcome.output), self._redact(outcome.error))

    async def close(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is None:
            return
        self._closing.set()
        self._closing = asyncio.Event()
        # A server may be slow to end its session; after a second the connection is dropped.
        await asyncio.wait([task], timeout=CLOSE_SECONDS)
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        """Give the SDK's client. Raises MCPError for the server's own errors, McpUnreachable without an answer."""
        used: asyncio.Future[Client] | None = None
        try:
            with _explained():
                if self._client is None or (self._task is not None and self._task.done()):
                    self._client = asyncio.get_running_loop().create_future()
                    self._task = asyncio.create_task(self._keep(self._client, self._closing))
                    # The caller may be gone by then: marks a failure as seen, or asyncio would log it.
                    self._client.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
                used = self._client
                yield await asyncio.shield(used)
        except MCPError as error:
            # The SDK's error when the server has forgotten the session: then it did not look at the request either.
            forgotten = error.code == INVALID_REQUEST and error.message == "Session terminated"
            # The SDK's own words when the connection broke: servers use the same code for errors of their own.
            words = ("Connection", "SSE stream", "Transport")
            broken = error.code == CONNECTION_CLOSED and error.message.startswith(words)
            if not forgotten and not broken:
                if error.message == "Server returned an error response" and (refusal := self._find_refusal()):
                    raise refusal from error
                raise
            if self._client is used:  # else a concurrent call has closed it already
                await self.close()  # the next call connects anew
            raise McpConnectionLost(not forgotten) from error

    async def _keep(self, ready: asyncio.Future[Client], closing: asyncio.Event) -> None:
        """Hold the connection, by the first of the server's transports that works, until it is closed."""
        cause: McpUnreachable | None = None
        # The likelier first. Servers before streamable HTTP stream at an address ending in /sse.
        is_old = urlsplit(self._server.url).path.rstrip("/").endswith("/sse")
        likely = ["sse", "http"] if is_old else ["http", "sse"]
        try:
            if self._slots.locked():
                # Runs that wait here for each other's connections might wait for ever.
                cause = McpUnreachable("Too many connections to MCP servers are open; try again later.", absent=True)
                return
            async with self._slots:
                for transport in likely if self._server.transport == "auto" else [self._server.transport]:
                    try:
                        with _explained():
                            await self._hold(transport, ready, closing)
                        return
                    except (MCPError, McpUnreachable) as error:
                        explained = _explain(error)
                        cause = cause or self._find_refusal() or explained
                        # A connection that breaks later is noticed by the next call.
                        if ready.done() or cause.status is not None or explained.absent:
                            return
        finally:
            if not ready.done():
                ready.set_exception(cause or McpUnreachable("The connection to the server was closed."))

    def _find_refusal(self) -> McpUnreachable | None:
        """Explain a refusal by its HTTP status, which the SDK keeps to itself: a wrong token should show as one."""
        status = self._transport.refused
        return None if status is None else McpUnreachable(f"The server answered with status {status}.", status)

    async def _hold(self, transport: str, ready: asyncio.Future[Client], closing: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(min(CONNECT_SECONDS, self._server.seconds)):
                if transport == "http":
                    http = await stack.enter_async_context(self._make_http())
                    streams = streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MAX_BYTES)
                    mode = "auto"
                else:
                    streams, mode = sse_client(self._server.url, httpx_client_factory=self._make_http), "legacy"
                about = Implementation(name="outlive", version=__version__)
                client = await stack.enter_async_context(Client(streams, client_info=about, mode=mode, cache=None))
            if not ready.cancelled():
                ready.set_result(client)
            await closing.wait()

    def _make_http(self, *_: Any, **__: Any) -> httpx2.AsyncClient:
        headers = httpx2.Headers({**self._headers, **self._server.headers})
        if self._server.authorization is not None:
            headers["Authorization"] = f"Bearer {self._server.authorization}"
        self._transport = self._make_transport()
        return httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=self._server.seconds + SLACK_SECONDS),
            transport=self._transport,
            trust_env=False,
        )


async def _list(client: Client) -> list[Json]:
    tools: list[Json] = []
    size, cursor = 0, None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        shown = [_show_tool(tool) for tool in page.tools][: MAX_TOOLS - len(tools)]
        tools += shown
        size += len(msgspec.json.encode(shown))
        if size > MAX_LIST:
            raise McpUnreachable(f"The server's list of tools has more than {MAX_LIST} bytes.")
        cursor = page.next_cursor
        if cursor is None or len(tools) >= MAX_TOOLS:
            break
    return tools


# -- errors


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise McpUnreachable in place of all errors but the server's own."""
    try:
        yield
    except (MCPError, McpUnreachable):
        raise
    except Exception as error:  # an answer that the SDK does not expect makes it raise anything
        raise _explain(error) from error


def _explain(error: BaseException) -> McpUnreachable:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, McpUnreachable):
        return error
    if isinstance(error, httpx2.HTTPStatusError):
        status = error.response.status_code
        return McpUnreachable(f"The server answered with status {status}.", status)
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return McpUnreachable("The server did not answer in time.", absent=True)
    if isinstance(error, MCPError):
        first_line = error.message.partition("\n")[0]
        return McpUnreachable(f"The server answered with an error: {first_line}"[:500])
    if isinstance(error, httpx2.HTTPError):
        absent = isinstance(error, httpx2.TransportError)
        return McpUnreachable(f"The server could not be reached ({type(error).__name__}).", absent=absent)
    return McpUnreachable(f"What the server answered makes no sense ({type(error).__name__}).")


# -- tools and results as they are shown


def _show_tool(tool: Tool) -> Json:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations is not None else None
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema, "annotations": hints}


def _read_result(result: CallToolResult) -> ToolOutcome:
    """Make one text of a result: texts as they are, anything else as JSON, block by block."""
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    is_text = len(texts) == len(result.content) and (texts or result.structured_content is None)
    if is_text and not result.is_error:
        return ToolOutcome("\n".join(texts))
    blocks = [_show_block(block) for block in result.content]
    if result.is_error:
        return ToolOutcome(error={"type": "mcp_tool_execution_error", "content": blocks})
    return ToolOutcome(msgspec.json.encode(blocks or result.structured_content).decode())


def _show_block(block: Any) -> Json:
    shown: Json = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    resource = shown.get("resource") or {}
    length = len(shown.get("data") or resource.get("blob") or "")
    if length <= MAX_DATA:
        return shown
    kind = shown.get("mimeType") or resource.get("mimeType") or "binary"
    return {"type": "text", "text": f"[{kind}, {length * 3 // 4} bytes: too long to be kept]"}


# -- HTTP to addresses that callers name: never to a private one, and never for an answer without an end


class PrivateAddress(httpx2.TransportError):
    """The address is private, and this server may not be sent there."""


class AnswerTooLong(httpx2.TransportError):
    """The answer is longer than the limit."""


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """Resolves the host itself and connects to the address it has checked: a second lookup might find another."""

    def __init__(self, *, private: bool, proxy: str | None = None) -> None:
        # Without the environment's proxy, unless the operator wants it: it may reach what this server may not.
        super().__init__(trust_env=False, verify=TLS, proxy=proxy)
        self._private = private
        self._proxied = proxy is not None
        self.refused: int | None = None  # the status of the last answer that was a refusal

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await (super().handle_async_request(request) if self._private else self._ask_public(request))
        if answer.status_code in (401, 403, 429) or answer.status_code >= 500:
            self.refused = answer.status_code
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        by_event = answer.headers.get("content-type", "").startswith("text/event-stream")
        answer.stream = _BoundedStream(answer.stream, by_event)
        return answer

    async def _ask_public(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first of the host's addresses that accepts a connection."""
        ask, host, url = super().handle_async_request, request.url.host, request.url
        if self._proxied:
            # By its name, which the proxy resolves: this server may not know it.
            with contextlib.suppress(httpx2.ConnectError):
                await _resolve_public(host, url.port or 443)
            return await ask(request)
        *others, last = await _resolve_public(host, url.port or (443 if url.scheme == "https" else 80))
        request.extensions = {**request.extensions, "sni_hostname": host}
        for address in others:
            request.url = url.copy_with(host=address)  # the Host header names the host as before
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await ask(request)
        request.url = url.copy_with(host=last)
        return await ask(request)


@dataclass
class _BoundedStream(httpx2.AsyncByteStream):
    """Breaks off an answer that is too long. A stream of events may go on, as long as each of them ends."""

    _inner: httpx2.AsyncByteStream
    _by_event: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for piece in self._inner:
            length += len(piece)
            if self._by_event and (b"\n\n" in piece or b"\r\n\r\n" in piece):
                length = 0
            if length > MAX_BYTES:
                raise AnswerTooLong(f"The answer has more than {MAX_BYTES} bytes.")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _resolve_public(host: str, port: int) -> list[str]:
    try:
        return await resolve_public(host, port)
    except PrivateHost as error:
        raise PrivateAddress("The host has a private address.") from error
    except OSError as error:
        raise httpx2.ConnectError("The host is not known.") from error
