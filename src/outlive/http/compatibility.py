"""Choice of the protocols: Outlive's own, which use parts of uvicorn that are not public, or those of uvicorn."""

import asyncio
import importlib
import socket
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from outlive.http.connections import ConnectionLimits, Connections
from outlive.http.security import SecurityLog

# What is lost without Outlive's own protocols.
LOST = (
    "streams cost more, max_connections_per_address, receive_seconds and send_seconds have no effect, and a repeated "
    "POST without Idempotency-Key may get an answer that was delivered before"
)

_SECONDS = 5.0
_REQUEST = b"POST / HTTP/1.1\r\nHost: outlive\r\nContent-Length: 2\r\n\r\n{}"
_ANSWER = b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"
# A handshake, and a text in two fragments that are masked with zeros.
_MESSAGE = (
    b"GET / HTTP/1.1\r\nHost: outlive\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\x01\x82\0\0\0\0he\x80\x83\0\0\0\0llo"
)
_ECHO = b"\x82\x05hello"


def choose_protocols(limits: ConnectionLimits, security: SecurityLog | None = None, *, own: bool) -> dict[str, Any]:
    """Return the options of uvicorn.Config for Outlive's own protocols, or for uvicorn's."""
    if not own:
        return {"http": "auto", "ws": "auto", "limit_concurrency": limits.max_connections}
    connections = Connections(limits, security)
    module = importlib.import_module("outlive.http.protocol")  # fails where uvicorn is not as expected
    return {name: partial(kind, connections=connections) for name, kind in module.PROTOCOLS.items()}


async def find_fault() -> str | None:
    """Try Outlive's protocols, and return the reason why they cannot be used, or None."""
    try:
        async with asyncio.timeout(_SECONDS):
            await _expect(_REQUEST * 2, _ANSWER, 2)
            await _expect(_REQUEST.replace(b"POST", b"PUT") * 2, b"\r\ncontent-length: 5\r\n\r\nwhole", 2)
            await _expect(_MESSAGE, _ECHO, 1)
    except (ImportError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        return f"{type(error).__name__} {error}".strip()
    return None


async def _expect(sent: bytes, answer: bytes, times: int) -> None:
    """Raise ValueError unless what is sent on a new connection has this answer, so many times."""
    options: dict[str, Any] = {"lifespan": "off", "log_config": None, "log_level": "critical"}
    config = uvicorn.Config(_answer, **options, **choose_protocols(ConnectionLimits(), own=True))
    config.load()
    protocol: Any = config.http_protocol_class
    make = partial(protocol, config=config, server_state=ServerState(), app_state={})
    loop, received = asyncio.get_running_loop(), b""
    near, far = socket.socketpair()
    with near:
        near.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(make, far)
        try:
            await loop.sock_sendall(near, sent)
            while received.count(answer) < times:
                if not (piece := await loop.sock_recv(near, 65536)):
                    raise ValueError("answers otherwise than expected")
                received += piece
        finally:
            transport.abort()


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": (await receive())["bytes"]})
        return
    connection = scope["state"].pop("outlive.connection")
    await receive()
    if scope["method"] == "PUT":
        connection.answer_now(200, b"", b"whole")
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    connection.write_now(b"two")
    await send({"type": "http.response.body", "body": b"three"})
