"""A model's server on a real socket that answers as each test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from outlive.core.events import Json
from outlive.dialects.chat.backend import ChatBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Upstream
from tests.support.scripting import CountingIds

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The requests that a server got, and an event for the end of a connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.bodies: list[Json] = []
        self.requests: list[web.Request] = []
        self.connections: set[Any] = set()
        self.left = asyncio.Event()

    async def take(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.connections.add(request.transport)
        if request.can_read_body:
            self.bodies.append(await request.json())
        try:
            return await self._answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise


@asynccontextmanager
async def serve(
    answer: Answer, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, **fields: Any
) -> AsyncGenerator[tuple[ChatBackend, Server], None]:
    """A backend and the server that it talks to."""
    server = Server(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.take)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    pool = HttpPool()
    url = f"{'http' if tls is None else 'https'}://{host}:{port}/v1"
    upstream = Upstream(**{"name": "test", "url": url, **fields})
    backend = ChatBackend(upstream, pool, CountingIds())
    try:
        yield backend, server
    finally:
        await backend.close()
        pool.close()
        await runner.cleanup()
        if tls is not None:
            await asyncio.sleep(0.05)  # a connection whose handshake failed is closed by the loop alone


def streaming(*pieces: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None) -> Answer:
    """Make an answer of events, piece by piece; `then` replaces its end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        if then is not None:
            await then(request)
        await response.write_eof()
        return response

    return answer


def whole(body: Any, status: int = 200, **headers: str) -> Answer:
    """Make an answer of one JSON or text body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, str):
            return web.Response(text=body, status=status, headers=names)
        return web.json_response(body, status=status, headers=names)

    return answer


async def hang(request: web.Request) -> None:
    await asyncio.Event().wait()


async def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()
