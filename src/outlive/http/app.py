"""The ASGI application: routes, and what every request goes through on its way to one."""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route, Router

from outlive.core.errors import ClientDisconnected, Misdirected, OutliveError
from outlive.engine.engine import Engine
from outlive.http.access import Auth, Cors
from outlive.http.errors import describe, encode, envelope
from outlive.http.openapi.document import Handler
from outlive.http.request import Receive, Reply, Request, Scope, Send
from outlive.http.routes import EXACT, OPEN_PATHS, ROUTES
from outlive.http.websocket import Sockets

log = logging.getLogger(__name__)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Who may ask, from where, and how much."""

    keys: dict[str, list[str]] = {}
    origins: list[str] = []
    max_body_bytes: int = 64 * 1024 * 1024
    lenient_chat: bool = False
    websocket_seconds: float = 3600.0
    only_health: bool = False  # True on a node that answers health checks only


class Application:
    """Plain ASGI around starlette's router, so that a stream costs nothing but its own sends."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self._engine = engine
        self._access = access
        self._auth = Auth(access.keys, access.origins)
        self._cors = Cors(access.origins)
        self.sockets = Sockets(engine, self._auth, access.max_body_bytes, access.websocket_seconds)
        self._routes = [Route(each.path, _Target(each.handler), methods=[each.method]) for each in ROUTES]
        self._router = Router(self._routes)
        self._router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            if self._access.only_health:
                await send({"type": "websocket.close"})
            else:
                await self.sockets.serve(scope, receive, send)
            return
        request = Request(scope, receive, send, self._engine, self._access.max_body_bytes)
        request.lenient_chat = self._access.lenient_chat
        request.extra_headers = self._cors.headers(request)
        try:
            reply = await self._serve(request)
        except ClientDisconnected:
            return
        except HTTPException as error:
            reply = _routing_reply(error, scope, self._routes)
        except OutliveError as error:
            status, body, headers = describe(error)
            reply = Reply(encode(body), status, headers)
        except Exception:
            # A bug in one request must be answered like any other error.
            log.exception("%s %s failed request=%s", scope["method"], scope["path"], request.request_id)
            message = f"The server made a mistake. If it happens again, report it with this id: {request.request_id}."
            reply = Reply(encode(envelope(message, "server_error", None, "server_error")), 500)
        if reply is not None and not request.started:
            await request.reply(reply)

    async def _serve(self, request: Request) -> Reply | None:
        if (preflight := self._cors.preflight(request)) is not None:
            return preflight
        if request.scope["path"] not in OPEN_PATHS:
            if self._access.only_health:
                raise Misdirected
            request.owner = self._auth.admit(request)
        if (handler := EXACT.get((request.scope["method"], request.scope["path"]))) is not None:
            return await handler(request)
        request.scope["request"] = request
        request.scope["app"] = self  # makes the router raise what it cannot route, instead of answering it
        await self._router(request.scope, request.receive, request.send)
        reply: Reply | None = request.scope.get("reply")
        return reply


class _Target:
    """A handler as the router wants it: an ASGI application."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request = scope["request"]
        request.params = scope["path_params"]
        scope["reply"] = await self._handler(request)


def _routing_reply(error: HTTPException, scope: Scope, routes: list[Route]) -> Reply:
    if error.status_code == 405:
        message = f"{scope['method']} is not allowed on {scope['path']}."
        body = envelope(message, "invalid_request_error", None, "method_not_allowed")
        # Each route has one method, so the router itself knows of the first one's only.
        # (And a path that is a route by its own words is not the id of something.)
        matching = [route for route in routes if route.path == scope["path"]]
        matching = matching or [route for route in routes if route.matches(scope)[0] != Match.NONE]
        allowed = sorted({method for route in matching for method in route.methods or ()})
        return Reply(encode(body), 405, {"allow": ", ".join(allowed)})
    message = f"There is no {scope['method']} {scope['path']} here."
    return Reply(encode(envelope(message, "invalid_request_error", None, "unknown_url")), error.status_code)
