"""One HTTP request: its query, its body, and the ways to answer it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl

import msgspec

from outlive import __version__
from outlive.core.errors import ClientDisconnected, InvalidRequest, ServerFault, TooLarge, TooMany, UnsupportedMedia
from outlive.core.origin import Origin, is_request_id, read_trace
from outlive.core.requests.body import decode_body
from outlive.engine.budget import ByteBudget, Reservation
from outlive.engine.engine import Engine
from outlive.http.addresses import TrustedProxies
from outlive.http.connections import ClientConnection
from outlive.http.security import SecurityLog
from outlive.ports.catalog import Page, Paging
from outlive.ports.storage import Ticket

T = TypeVar("T")
P = ParamSpec("P")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# A larger body is decoded and checked in a thread, so that streams do not wait for it.
LARGE_BYTES = 256 * 1024
# Bytes of large bodies that each owner may have read, decoded and stored at once, and how long one more waits.
MAX_BODIES = 64 * 1024 * 1024
BODY_SECONDS = 20.0
# What is longer is sent in pieces: a client that does not read has one in its connection's buffer, not all.
PIECE_BYTES = 256 * 1024
MAX_PAGE = 100
MAX_KEY = 255
# Clients that see it use more than OpenAI offers: GETs that wait, POSTs that may be repeated under their key.
VERSION = (b"x-outlive-version", __version__.encode())


class Reply(msgspec.Struct):
    """A whole answer."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = {}
    content_type: str = "application/json"


_ID = re.compile(r"[a-z]{2,8}_[0-9a-f]{6,64}")  # as this server makes them


@dataclass(slots=True, eq=False)
class Request:
    """A request with the engine that serves it and the owner it came from."""

    scope: Scope
    receive: Receive
    send: Send
    engine: Engine
    max_body: int
    owner: str = "local"
    ticket: Ticket | None = None  # with which it came, instead of a key
    params: dict[str, str] = field(default_factory=dict)
    paths: Container[str] = ()  # of routes without parameters
    extra_headers: dict[str, str] = field(default_factory=dict)
    size: int = 0  # bytes of the body, if it is large
    bodies: ByteBudget = field(default_factory=lambda: ByteBudget(MAX_BODIES))
    lenient_chat: bool = False
    scrape: Callable[[], Awaitable[bytes]] | None = None  # renders the metrics
    security: SecurityLog = field(default_factory=lambda: SecurityLog(TrustedProxies([])))
    started: bool = False
    status: int | None = None  # of the answer, once it is begun
    disconnected: bool = False  # the client left before it had the whole answer
    response_id: str | None = None  # of the response that was created
    held: int = 0  # bytes of `bodies`
    reservation: Reservation | None = None  # for an answer that may be large
    headers: dict[bytes, bytes] = field(init=False)
    connection: ClientConnection = field(init=False)
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.headers = dict(self.scope["headers"])
        # Removed from the scope, which it refers to: a cycle would be left to the garbage collector.
        self.connection = self.scope.get("state", {}).pop("outlive.connection", None) or ClientConnection(self.receive)
        given = self.header(b"x-request-id")
        self.request_id = given if given and is_request_id(given) else self.engine.new_id("req")

    def header(self, name: bytes) -> str | None:
        """Return a header's value."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None

    def origin(self, part: str = "") -> Origin:
        """Return what a response created now, by that part of the request, has of it."""
        parent = self.header(b"traceparent")
        trace = read_trace(parent, self.header(b"tracestate") or "") if parent else ("", "")
        return Origin(self.request_id + part, self.engine.now(), *trace)

    def describe(self) -> dict[str, Any]:
        """Return the fields of a log line about it. The query may hold a secret, and a path that is no route, or has an
        id that is none of ours, may hold anything: neither is logged."""
        path, named = self.scope["path"], self.params.get("id")
        if not (path in self.paths or (self.params and all(map(_ID.fullmatch, self.params.values())))):
            path, named = "(unknown)", None
        in_conversations = path.startswith("/v1/conversations/")
        return {
            "request_id": self.request_id,
            "response_id": self.response_id or (None if in_conversations else named),
            "conversation_id": named if in_conversations else None,
            "owner": self.owner,
            "method": self.scope.get("method", "GET"),
            "path": path,
            "status": self.status,
            "disconnected": self.disconnected or None,
        }

    def idempotency_key(self) -> str | None:
        """Return the Idempotency-Key, which is at most MAX_KEY characters long (D17)."""
        key = self.header(b"idempotency-key")
        if key is not None and len(key) > MAX_KEY:
            raise InvalidRequest(
                f"An Idempotency-Key has at most {MAX_KEY} characters, not {len(key)}.", param="Idempotency-Key"
            )
        return key

    def query(self) -> list[tuple[str, str]]:
        """Return the query as pairs, without the `[]` that SDKs put after the names of arrays."""
        raw = self.scope.get("query_string", b"")
        if not raw:
            return []
        return [(name.removesuffix("[]"), value) for name, value in parse_qsl(raw.decode("latin-1"), True)]

    async def json(self) -> Any:
        """Read and decode the body; an empty one is an empty object."""
        raw = await self._read()
        if not raw:
            return {}
        kind = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # Web pages can send other types without a preflight, so this also keeps pages out.
            raise UnsupportedMedia
        self.size = len(raw) if len(raw) > LARGE_BYTES else 0
        return await self.work(decode_body, raw)

    @property
    def large(self) -> bool:
        return self.size > 0

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that works on the body; in a thread if that is large."""
        return await asyncio.to_thread(function, *args, **kwargs) if self.large else function(*args, **kwargs)

    async def object(self) -> dict[str, Any]:
        """Read and decode a body that must be an object."""
        body = await self.json()
        if not isinstance(body, dict):
            raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
        return body

    async def _read(self) -> bytearray:
        declared = self.header(b"content-length")
        if declared is not None and declared.isdigit() and int(declared) > self.max_body:
            raise self._too_large()
        body, more = bytearray(), True
        if declared is not None and declared.isdigit() and int(declared) > LARGE_BYTES:
            await self._hold(int(declared))
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            body += message.get("body", b"")
            if len(body) > self.max_body:  # its length need not have been declared
                raise self._too_large()
            if len(body) > LARGE_BYTES and not self.held:
                await self._hold(self.max_body)
            more = message.get("more_body", False)
        return body

    async def _hold(self, size: int) -> None:
        """Wait until the owner's other large bodies leave room for one of this size."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                self.held = await self.bodies.acquire(self.owner, size)
        except TimeoutError:
            raise TooMany("Your other large requests are still being read. Try again later.", retry_after=5) from None

    async def reserve_answer(self) -> None:
        """Wait until the owner's other large answers leave room for this one. Raises TooMany."""
        self.reservation = self.engine.make_reservation(self.owner)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await self.reservation.reserve()
        except TimeoutError:
            raise TooMany("Your other large answers are still being sent. Try again later.", retry_after=5) from None

    def release_answer(self) -> None:
        if self.reservation is not None:
            self.reservation.release()

    def release_body(self) -> None:
        """Give back the room that the body took: it was stored or refused."""
        if self.held:
            self.bodies.release(self.owner, self.held)
            self.held = 0

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The request body is larger than the {self.max_body} bytes that this server takes.")

    @property
    def may_be_repeated(self) -> bool:
        """True if the client repeats the request by itself when it gets no answer (D17)."""
        return b"x-stainless-retry-count" in self.headers

    def is_abandoned(self) -> bool:
        """Return True if the client is gone, so that nothing may be begun for it: it may have asked another node by
        now, and been answered."""
        if not self.has_left():
            return False
        self.connection.cut()  # uvicorn may not know yet, and would log that the request was not answered
        return True

    def has_left(self) -> bool:
        """Return True if the client is known to be gone, without waiting. Not for use after the last send."""
        if not self.may_be_repeated:
            return False  # its answer is not recorded as delivered or not
        if self.connection.is_hung_up():
            return True
        waiting = self.receive().__await__()
        try:
            next(waiting)
        except StopIteration as received:
            return bool(received.value["type"] == "http.disconnect")
        waiting.close()
        return False

    async def start(self, status: int, content_type: str, headers: dict[str, str], length: int | None = None) -> None:
        self.started, self.status = True, status
        raw = [(b"content-type", content_type.encode()), (b"x-request-id", self.request_id.encode()), VERSION]
        if length is not None:
            raw.append((b"content-length", b"%d" % length))
        for extra in (headers, self.extra_headers):
            raw += [(name.encode(), value.encode("latin-1", "replace")) for name, value in extra.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def reply(self, reply: Reply) -> None:
        body = reply.body
        if self.reservation is not None:
            self.reservation.settle(len(body))
        await self.start(reply.status, reply.content_type, reply.headers, len(body))
        if len(body) > PIECE_BYTES and self.reservation is not None:  # a create: see `was_read`
            await self.send_pieces(body)
            body = b""
        await self.send({"type": "http.response.body", "body": body})

    async def send_pieces(self, body: bytes) -> None:
        """Send a long part of an answer that is not its end, piece by piece, as the client reads it."""
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    def mistake(self) -> ServerFault:
        """Return the error with which a bug is answered."""
        return ServerFault(
            f"The server made a mistake. If it happens again, report it with this id: {self.request_id}."
        )

    async def wait_disconnected(self) -> None:
        """Wait until the client is gone."""
        while not (await self.receive())["type"].endswith(".disconnect"):
            pass


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, unless the client leaves first: no one would see its result. Raises ClientDisconnected."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(request.wait_disconnected())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


def json_reply(body: object, headers: dict[str, str] | None = None, status: int = 200) -> Reply:
    return Reply(msgspec.json.encode(body), status, headers or {})


def read_paging(query: list[tuple[str, str]]) -> Paging:
    """Read `after`, `limit` and `order` of a list."""
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
