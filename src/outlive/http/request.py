"""One HTTP request: its query, its body, and the ways to answer it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from outlive import __version__
from outlive.core.errors import InvalidRequest, TooLarge, UnsupportedMedia
from outlive.core.requests.body import decode_body
from outlive.engine.engine import Engine
from outlive.http.connection import ClientConnection
from outlive.ports.catalog import Page, Paging

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# A body larger than this is looked through in a thread, so that streams do not wait for it.
LARGE_BYTES = 256 * 1024
MAX_PAGE = 100
# Clients that know it ask for more than OpenAI gives: GETs that wait, POSTs that may be repeated under their key.
VERSION = (b"x-outlive-version", __version__.encode())


class Reply(msgspec.Struct):
    """A whole answer."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = {}
    content_type: str = "application/json"


class ClientDisconnected(Exception):
    """The client went away before its request was accepted."""


class Call:
    """A request with the engine that serves it and the owner it came from."""

    __slots__ = (
        "engine",
        "extra_headers",
        "headers",
        "large",
        "lenient_chat",
        "max_body",
        "outlet",
        "owner",
        "params",
        "receive",
        "request_id",
        "scope",
        "send",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, engine: Engine, max_body: int) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.engine = engine
        self.max_body = max_body
        self.owner = "local"
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.params: dict[str, str] = {}
        self.extra_headers: dict[str, str] = {}
        self.large = False
        self.lenient_chat = False
        self.started = False
        # Taken out of the scope: it knows the scope, and a circle would be left to the garbage collector.
        self.outlet: ClientConnection = scope.get("state", {}).pop("outlive.outlet", None) or ClientConnection()
        self.request_id = engine.ids.new("req")

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None

    def query(self) -> list[tuple[str, str]]:
        """Pairs, with the `[]` that SDKs put after the names of arrays taken off."""
        raw = self.scope.get("query_string", b"")
        if not raw:
            return []
        return [(name.removesuffix("[]"), value) for name, value in parse_qsl(raw.decode("latin-1"), True)]

    async def json(self) -> Any:
        """The decoded body; an empty one is an empty object."""
        raw = await self._read()
        if not raw:
            return {}
        kind = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A web page can send other types without asking first, so this is also what keeps pages out.
            raise UnsupportedMedia
        self.large = len(raw) > LARGE_BYTES
        if self.large:
            return await asyncio.to_thread(decode_body, raw)
        return decode_body(raw)

    async def object(self) -> dict[str, Any]:
        body = await self.json()
        if not isinstance(body, dict):
            raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
        return body

    async def _read(self) -> bytes:
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self.max_body:
            raise self._too_large()
        message = await self.receive()
        body: bytes = message.get("body", b"")
        if len(body) > self.max_body:  # its length need not have been declared
            raise self._too_large()
        if not message.get("more_body") and message["type"] == "http.request":
            return body
        pieces, size = [body], len(body)
        while message.get("more_body"):
            message = await self.receive()
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > self.max_body:
                raise self._too_large()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return b"".join(pieces)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The request body is larger than the {self.max_body} bytes that this server takes.")

    @property
    def may_be_repeated(self) -> bool:
        """Whether the client asks again by itself when it hears nothing (D17)."""
        return b"x-stainless-retry-count" in self.headers

    def confirm(self) -> None:
        """Nothing may be begun for a client that has left: it may have asked another node by now, and been answered."""
        if self.has_left():
            self.outlet.cut()  # which uvicorn may not know yet, and would complain that nobody was answered
            raise ClientDisconnected

    def has_left(self) -> bool:
        """Whether the client is known to have gone, without waiting for it to go. Not for use after the last send."""
        if not self.may_be_repeated:
            return False  # nobody asks
        if self.outlet.has_hung_up():
            return True
        waiting = self.receive().__await__()
        try:
            next(waiting)
        except StopIteration as received:
            return bool(received.value["type"] == "http.disconnect")
        waiting.close()
        return False

    async def start(self, status: int, content_type: str, headers: dict[str, str], length: int | None = None) -> None:
        self.started = True
        raw = [(b"content-type", content_type.encode()), (b"x-request-id", self.request_id.encode()), VERSION]
        if length is not None:
            raw.append((b"content-length", b"%d" % length))
        for extra in (headers, self.extra_headers):
            raw += [(name.encode(), value.encode("latin-1", "replace")) for name, value in extra.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def reply(self, reply: Reply) -> None:
        await self.start(reply.status, reply.content_type, reply.headers, len(reply.body))
        await self.send({"type": "http.response.body", "body": reply.body})


def json_reply(body: object, headers: dict[str, str] | None = None) -> Reply:
    return Reply(msgspec.json.encode(body), headers=headers or {})


def read_paging(query: list[tuple[str, str]]) -> Paging:
    """`after`, `limit` and `order` of a list."""
    given = dict(query)
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order must be 'asc' or 'desc', not {order!r}.", param="order")
    limit = read_int(given.get("limit", "20"), "limit")
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be between 1 and {MAX_PAGE}.", param="limit")
    return Paging(given.get("after") or None, limit, order)


def read_int(text: str, param: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(
            f"{param} must be a whole number, not {text!r}.", param=param, code="invalid_type"
        ) from None


def read_bool(text: str | None, param: str) -> bool:
    if text is None or text.lower() in ("false", "0", ""):
        return False
    if text.lower() in ("true", "1"):
        return True
    raise InvalidRequest(f"{param} must be true or false, not {text!r}.", param=param, code="invalid_type")


def list_reply(page: Page) -> Reply:
    return json_reply(
        {
            "object": "list",
            "data": page.data,
            "first_id": page.data[0]["id"] if page.data else None,
            "last_id": page.data[-1]["id"] if page.data else None,
            "has_more": page.has_more,
        }
    )
