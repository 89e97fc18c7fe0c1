"""A real server in this process, with Outlive's protocol in front of any ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, NamedTuple

import uvicorn

from outlive.http.connections import ConnectionLimits, Connections
from outlive.http.protocol import Protocol, WebSocketProtocol
from outlive.http.security import SecurityLog
from outlive.server import Server

ASKING = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Served(NamedTuple):
    """The address of a server, and the server itself."""

    address: tuple[str, int]
    server: Server

    @property
    def connections(self) -> list[Protocol]:
        """Its open connections."""
        return [each for each in self.server.server_state.connections if isinstance(each, Protocol)]


@contextlib.asynccontextmanager
async def serving(app: Any, **limits: Any) -> AsyncGenerator[tuple[str, int], None]:
    """Serve an application within limits; its address."""
    async with serve(app, **limits) as served:
        yield served.address


@contextlib.asynccontextmanager
async def serve(app: Any, **limits: Any) -> AsyncGenerator[Served, None]:
    """Serve an application within limits."""
    security = SecurityLog(limits.pop("trusted_proxies", ()))
    connections = Connections(ConnectionLimits(**limits), security)
    http: Any = partial(Protocol, connections=connections)
    ws: Any = partial(WebSocketProtocol, connections=connections)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(uvicorn.Config(app, http=http, ws=ws, lifespan="off", log_config=None, access_log=False))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(30):
                yield Served(listening.getsockname(), server)
        finally:
            server.should_exit = server.force_exit = True
            await task


@contextlib.asynccontextmanager
async def connect(address: tuple[str, int]) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Open a connection, and close it in the end."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
