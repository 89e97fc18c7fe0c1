"""The ASGI application: what every request goes through on its way to its route."""

import asyncio
import contextlib
import logging
import time
from functools import partial

from outlive.core.errors import (
    ClientDisconnected,
    Misdirected,
    NotFound,
    OutliveError,
    ShuttingDown,
    StorageUnavailable,
)
from outlive.core.requests.body import MAX_TEXTS
from outlive.engine.budget import ByteBudget
from outlive.engine.engine import Engine
from outlive.http.access import Access, Auth, answer_preflight, check_ticket
from outlive.http.errors import error_reply
from outlive.http.metrics import METRICS_PATH, Scrape
from outlive.http.request import MAX_BODIES, MAX_TURNS, Receive, Reply, Request, Scope, Send
from outlive.http.routes import OPEN_PATHS, PATHS, find_route
from outlive.http.security import SecurityLog
from outlive.http.websocket import RESTART, SOCKET_PATH, VOID_KEY, Socket

log = logging.getLogger(__name__)

# Asked every few seconds, so that each request there is logged at the level `debug` only.
_PROBED = frozenset({"/healthz", "/readyz", METRICS_PATH})


class Application:
    """Plain ASGI, so that a stream costs nothing but its own sends."""

    def __init__(self, engine: Engine, access: Access, scrape: Scrape | None = None) -> None:
        self._access = access
        self._only_health = access.role == "worker"
        self.security = SecurityLog(access.trusted_proxies)
        self._auth = Auth(access, self.security, engine.keys)
        self._root = access.root_path.rstrip("/")
        self._sockets: set[Socket] = set()
        self._make_request = partial(
            Request,
            engine=engine,
            max_body=access.max_body_bytes,
            bodies=ByteBudget(max(MAX_BODIES, access.max_body_bytes)),
            texts=ByteBudget(MAX_TEXTS),
            turns=ByteBudget(MAX_TURNS),
            security=self.security,
            paths=PATHS,
            lenient_chat=access.lenient_chat,
            scrape=scrape,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._root:  # some proxies pass it on, others do not, and probes come without it
            scope["root_path"] = self._root
            if scope["path"].startswith(f"{self._root}/"):
                scope["path"] = scope["path"].removeprefix(self._root)
        request = self._make_request(scope, receive, send)
        began = time.monotonic()
        try:
            await (self._serve_socket if scope["type"] == "websocket" else self._serve_http)(request)
        finally:
            if request.reservation is not None:
                request.reservation.release()
            level = logging.DEBUG if scope["path"] in _PROBED else logging.INFO
            if log.isEnabledFor(level):
                fields = request.describe() | {"duration_ms": round((time.monotonic() - began) * 1000)}
                # As `log.log` does it, in fewer steps.
                log.handle(log.makeRecord(log.name, level, "", 0, "request ended", (), None, extra={"fields": fields}))

    async def _serve_http(self, request: Request) -> None:
        request.extra_headers = self._auth.cors_headers(request)
        try:
            reply = await self._serve(request)
        except ClientDisconnected:
            request.disconnected = True
            return
        except asyncio.CancelledError:
            if request.status is not None:
                raise
            reply = error_reply(ShuttingDown())  # the process ends before the request has
        except OutliveError as error:
            if isinstance(error, StorageUnavailable):
                log.warning("%s failed: %s", error.operation, error.cause, extra=request.describe())
            self.security.count_error(request.scope, request.owner, error)
            reply = error_reply(error)
        except Exception:
            # A bug in one request must be answered like any other error.
            log.exception("request failed", extra=request.describe())
            reply = error_reply(request.mistake())
        finally:
            request.release_body()
        if reply is not None and request.status is None:
            await request.reply(reply)

    async def _serve(self, request: Request) -> Reply | None:
        method = request.scope["method"]
        if method == "OPTIONS" and b"access-control-request-method" in request.headers:
            return answer_preflight(request)
        await self._admit(request, request.scope["path"])
        route = find_route(request)
        if isinstance(route, Reply):
            return route
        if request.ticket is not None:
            await check_ticket(request, request.ticket, route.path if route.ticket else None)
        if route.admin:
            request.check_admin(f"{route.path} is")
        if request.reads_all and route.method == "GET" and "id" in request.params:
            request.owner = await request.engine.find_owner(request.params["id"]) or request.owner
        if request.query:
            route.check_query(request.query)
        reply = await route.handler(request)
        if method == "DELETE":
            self.security.write_deletion(request.scope, request.describe())
        return reply

    async def _admit(self, request: Request, path: str) -> None:
        if path == METRICS_PATH:
            await self._auth.admit_admin(request)
        elif path == "/" or path.startswith("/console/"):
            if self._only_health or not self._access.console:
                raise NotFound("This server has no console.", code="unknown_url")
        elif path not in OPEN_PATHS:
            if self._only_health:
                raise Misdirected
            await self._auth.admit(request)

    async def _serve_socket(self, request: Request) -> None:
        if self._only_health:
            await request.send({"type": "websocket.close"})
            return
        try:
            await self._auth.admit(request)
            if request.scope["path"] != SOCKET_PATH:
                raise NotFound(f"There is no WebSocket at {request.scope['path']}.", code="unknown_url")
            if request.engine.is_draining:
                raise ShuttingDown
        except ClientDisconnected:
            return
        except OutliveError as error:
            reply = error_reply(error)
            with contextlib.suppress(OSError):  # the handshake is answered with an error of HTTP
                await request.start(reply.status, reply.content_type, reply.headers)
                await request.send({"type": "websocket.http.response.body", "body": reply.body})
            return
        socket = Socket(request, self._access.websocket_seconds)
        self._sockets.add(socket)
        try:
            with request.while_valid(lambda: socket.end(VOID_KEY)), contextlib.suppress(OSError):  # the client has gone
                await socket.run()
        finally:
            self._sockets.discard(socket)

    def drain(self) -> None:
        """Close every WebSocket connection as soon as nothing is under way on it."""
        for socket in self._sockets:
            socket.retire(RESTART)
