"""One line to an MCP server: connected when it is first needed, and kept by a task of its own until it is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, Implementation, Tool

from outlive import __version__
from outlive.core.events import Json
from outlive.core.redactor import Redactor
from outlive.core.toolcalls.calls import ToolOutcome
from outlive.ports.toolbox import Invocation, ToolProgress, ToolServer
from outlive.tooling.mcp.content import read_result
from outlive.tooling.mcp.guard import MAX_BYTES, Guard

CONNECT_SECONDS = 15.0
LIST_SECONDS = 20.0
CLOSE_SECONDS = 1.0
# A stream may be silent for so much longer than a call may take: the call's own deadline comes first.
SLACK_SECONDS = 300.0
MAX_PAGES = 50
MAX_TOOLS = 1000
MAX_LIST = 1024 * 1024  # bytes

# These ("client" is the SDK's, too) say what was sent and where: content and secrets, which no log may hold.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

# Under these names a server finds out which call it is asked for, and whether it may have been asked before.
KEY = "outlive/call-key"
REPEATED = "outlive/repeated"


class Unreachable(Exception):
    """The server could not be talked to."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class Lost(Unreachable):
    """The connection broke, or the server was started anew, in the middle of it."""

    def __init__(self, unheard: bool) -> None:
        super().__init__("The connection to the server was lost. The call may or may not have taken effect.")
        self.unheard = unheard  # the request is known not to have been looked at


class Line:
    """The SDK wants a connection to be closed by the task that opened it; this is that task's keeper."""

    def __init__(self, server: ToolServer, *, private: bool) -> None:
        self._server = server
        self._private = private
        self._seconds = server.seconds
        self._task: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._client: asyncio.Future[Client] | None = None
        self._guard = Guard(private=private)
        self._redact = Redactor([server.authorization, *server.headers.values()]).redact

    async def try_list(self) -> tuple[list[Json], str | None]:
        """The server's tools as an `mcp_list_tools` item shows them, or why there are none."""
        try:
            async with self._talk() as client, asyncio.timeout(min(LIST_SECONDS, self._seconds)):
                tools = [_show(tool) for tool in await _list(client)]
            if len(msgspec.json.encode(tools)) > MAX_LIST:
                return [], f"The server's list of tools has more than {MAX_LIST} bytes."
            return tools, None
        except (MCPError, Unreachable) as error:
            return [], self._redact(_explain(error).message)

    async def call(self, name: str, invocation: Invocation, may_repeat: bool) -> ToolOutcome:
        try:
            try:
                return await self._call(name, invocation, invocation.repeated)
            except Lost as lost:
                if not (may_repeat or lost.unheard):
                    raise
                return await self._call(name, invocation, invocation.repeated or not lost.unheard)
        except MCPError as error:
            message = self._redact(error.message)
            return ToolOutcome(error={"type": "mcp_protocol_error", "code": error.code, "message": message})
        except Unreachable as error:
            message = self._redact(error.message)
            return ToolOutcome(error={"type": "http_error", "code": error.status or 0, "message": message})

    async def _call(self, name: str, invocation: Invocation, repeated: bool) -> ToolOutcome:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            invocation.report(ToolProgress(progress, total, message and self._redact(message)))

        meta: Any = {KEY: invocation.key, REPEATED: repeated}
        async with self._talk() as client:
            result = await client.call_tool(name, invocation.arguments, progress_callback=tell, meta=meta)
        outcome = read_result(result)
        return ToolOutcome(self._redact(outcome.output), self._redact(outcome.error))

    async def close(self) -> None:
        task, self._task, self._client = self._task, None, None
        if task is None:
            return
        self._left.set()
        self._left = asyncio.Event()
        # A server may be slow to see us off; what is left is cut off.
        await asyncio.wait([task], timeout=CLOSE_SECONDS)
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)

    @contextlib.asynccontextmanager
    async def _talk(self) -> AsyncIterator[Client]:
        """Raises MCPError for an error that the server answers with, Unreachable where there is no answer."""
        kept: asyncio.Future[Client] | None = None
        try:
            kept = self._connect()
            yield await asyncio.shield(kept)
        except MCPError as error:
            # What the SDK says when the server has forgotten the session: then it did not look at the request either.
            forgotten = error.code == INVALID_REQUEST and error.message == "Session terminated"
            if not forgotten and not _is_about_the_line(error):
                if (
                    error.message == "Server returned an error response"
                    and (refusal := self._find_refusal()) is not None
                ):
                    raise refusal from error
                raise
            if self._client is kept:  # else another call, made at the same time, has found out before
                await self.close()  # whoever is next begins anew
            raise Lost(forgotten) from error
        except Unreachable:
            raise
        except Exception as error:
            raise _explain(error) from error

    def _connect(self) -> asyncio.Future[Client]:
        if self._client is None or (self._task is not None and self._task.done()):
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._keep(self._client, self._left))
            self._client.add_done_callback(_look_at)
        return self._client

    async def _keep(self, ready: asyncio.Future[Client], left: asyncio.Event) -> None:
        """Try each transport that the server may speak; stay until the line is left."""
        cause: Unreachable | None = None
        try:
            for transport in _transports(self._server):
                try:
                    await self._hold(transport, ready, left)
                    return
                except Exception as error:
                    cause = cause or self._find_refusal() or _explain(error)
                    # Broken later: whoever uses it next finds that out. Or not there at all, whatever is spoken to it.
                    if ready.done() or cause.status is not None or not _may_speak_otherwise(error):
                        return
        finally:
            if not ready.done():
                ready.set_exception(cause or Unreachable("The line to the server was closed."))

    def _find_refusal(self) -> Unreachable | None:
        """The SDK does not tell the status of an answer; a wrong token should show as what it is."""
        status = self._guard.refused
        return None if status is None else Unreachable(f"The server answered with status {status}.", status)

    async def _hold(self, transport: str, ready: asyncio.Future[Client], left: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(min(CONNECT_SECONDS, self._seconds)):
                streams = self._open_sse() if transport == "sse" else await self._open_http(stack)
                mode = "legacy" if transport == "sse" else "auto"
                about = Implementation(name="outlive", version=__version__)
                client = await stack.enter_async_context(Client(streams, client_info=about, mode=mode, cache=None))
            if not ready.cancelled():
                ready.set_result(client)
            await left.wait()

    async def _open_http(self, stack: contextlib.AsyncExitStack) -> Any:
        http = await stack.enter_async_context(self._make_http())
        return streamable_http_client(self._server.url, http_client=http, max_sse_event_size=MAX_BYTES)

    def _open_sse(self) -> Any:
        return sse_client(
            self._server.url,
            sse_read_timeout=self._seconds + SLACK_SECONDS,
            httpx_client_factory=lambda headers=None, timeout=None, auth=None: self._make_http(),
        )

    def _make_http(self) -> httpx2.AsyncClient:
        headers = httpx2.Headers(self._server.headers)
        if self._server.authorization is not None:
            headers["Authorization"] = f"Bearer {self._server.authorization}"
        self._guard = Guard(private=self._private)
        return httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=self._seconds + SLACK_SECONDS),
            transport=self._guard,
            trust_env=False,
        )


async def _list(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) >= MAX_TOOLS:
            break
    return tools[:MAX_TOOLS]


def _transports(server: ToolServer) -> list[str]:
    """Which to try, the likelier first. Servers before streamable HTTP have their stream at an address of its own."""
    if server.transport != "auto":
        return [server.transport]
    return ["sse", "http"] if urlsplit(server.url).path.rstrip("/").endswith("/sse") else ["http", "sse"]


def _look_at(ready: asyncio.Future[Client]) -> None:
    """Nobody may be waiting for it any more, and that is no error of its own."""
    if not ready.cancelled():
        ready.exception()


def _is_about_the_line(error: MCPError) -> bool:
    """Whether these are words of the SDK's own: servers use the same number for whatever they like."""
    return error.code == CONNECTION_CLOSED and error.message.startswith(("Connection", "SSE stream", "Transport"))


def _unwrap(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _may_speak_otherwise(error: BaseException) -> bool:
    """Whether a server that could not be talked to may understand the other transport."""
    return not isinstance(_unwrap(error), TimeoutError | httpx2.TransportError)


def _explain(error: BaseException) -> Unreachable:
    """What went wrong, without an address or a header in it."""
    error = _unwrap(error)
    if isinstance(error, Unreachable):
        return error
    if isinstance(error, httpx2.HTTPStatusError):
        return Unreachable(f"The server answered with status {error.response.status_code}.", error.response.status_code)
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return Unreachable("The server did not answer in time.")
    if isinstance(error, MCPError):
        first_line = error.message.partition("\n")[0]
        return Unreachable(f"The server answered with an error: {first_line}"[:500])
    if isinstance(error, httpx2.HTTPError):
        return Unreachable(f"The server could not be reached ({type(error).__name__}).")
    return Unreachable(f"What the server answered makes no sense ({type(error).__name__}).")


def _show(tool: Tool) -> Json:
    hints = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations is not None else None
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": hints,
    }
