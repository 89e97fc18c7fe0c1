"""One HTTP request: its query, its body, and the ways to answer it."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Container, Coroutine, MutableMapping
from functools import cache
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl

import msgspec

from outlive import __version__
from outlive.core.errors import (
    ClientDisconnected,
    Forbidden,
    InvalidRequest,
    ServerFault,
    TooLarge,
    TooMany,
    UnsupportedMedia,
)
from outlive.core.events import Json
from outlive.core.origin import Origin, is_request_id, read_trace
from outlive.core.owners import hide_content, join, split
from outlive.core.requests.body import MAX_TEXTS, decode_body, weigh_raw
from outlive.core.requests.checks import check_value, make_checks, refuse_missing
from outlive.engine.budget import ByteBudget, Reservation
from outlive.engine.engine import Engine
from outlive.http.connections import ClientConnection
from outlive.http.security import SecurityLog
from outlive.ports.catalog import Filters, Page, Paging
from outlive.ports.storage import Key, Ticket

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
# Bytes of turns that wait or are remembered on all WebSockets of an owner.
MAX_TURNS = 128 * 1024 * 1024
# What is longer is sent in pieces: a client that does not read has one in its connection's buffer, not all.
PIECE_BYTES = 256 * 1024
MAX_PAGE = 100
MAX_KEY = 255
NO_KEY = Key("", "local")  # the rights of all requests, on a server without keys
# Clients that see it use more than OpenAI offers: GETs that wait, POSTs that may be repeated under their key.
VERSION = (b"x-outlive-version", __version__.encode())
VERSION_LINE = f"x-outlive-version: {__version__}\r\n"


class Reply(msgspec.Struct):
    """A whole answer."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = {}
    content_type: str = "application/json"


MAX_PAIRS = 16  # as many as metadata may have
MAX_SECONDS = 1 << 40
USER_NAME = re.compile(r"[!-~]{1,256}")  # of end users
OWNER_NAME = re.compile(r"[!-~]{1,200}")
_find_checks = cache(make_checks)
_ID = re.compile(r"[a-z]{2,8}_[0-9a-f]{6,64}")  # as this server makes them


class Request(msgspec.Struct, eq=False):
    """A request with the engine that serves it and the owner it came from."""

    scope: Scope
    receive: Receive
    send: Send
    engine: Engine
    max_body: int
    owner: str = "local"
    key: Key = NO_KEY
    ticket: Ticket | None = None  # with which it came, instead of a key
    reads_all: bool = False  # an admin's, who may read the content of all owners
    params: dict[str, str] = {}
    query: list[tuple[str, str]] = []  # without the `[]` that SDKs put after names of arrays
    paths: Container[str] = ()  # of routes without parameters
    extra_headers: dict[str, str] = {}
    size: int = 0  # bytes of the body, if it is large
    bodies: ByteBudget = msgspec.field(default_factory=lambda: ByteBudget(MAX_BODIES))
    texts: ByteBudget = msgspec.field(default_factory=lambda: ByteBudget(MAX_TEXTS))  # of bodies that grow when decoded
    turns: ByteBudget = msgspec.field(default_factory=lambda: ByteBudget(MAX_TURNS))
    lenient_chat: bool = False
    scrape: Callable[[], Awaitable[bytes]] | None = None  # renders the metrics
    security: SecurityLog = msgspec.field(default_factory=SecurityLog)
    status: int | None = None  # of the answer, once it is begun
    disconnected: bool = False  # the client left before it had the whole answer
    response_id: str | None = None  # of the response that was created
    held: int = 0  # bytes of `bodies`
    held_texts: int = 0
    reservation: Reservation | None = None  # for an answer that may be large
    headers: dict[bytes, bytes] = {}  # read from the scope, like what follows
    connection: ClientConnection = ClientConnection()
    request_id: str = ""
    may_be_repeated: bool = False  # by the client itself, when it gets no answer (D17)

    def __post_init__(self) -> None:
        self.headers = dict(self.scope["headers"])
        self.may_be_repeated = b"x-stainless-retry-count" in self.headers
        # Removed from the scope, which it refers to: a cycle would be left to the garbage collector.
        self.connection = self.scope.get("state", {}).pop("outlive.connection", None) or ClientConnection(self.receive)
        if raw := self.scope.get("query_string"):
            self.query = [(name.removesuffix("[]"), value) for name, value in parse_qsl(raw.decode("latin-1"), True)]
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

    def while_valid(self, stop: Callable[[], None]) -> contextlib.AbstractContextManager[object]:
        """Call `stop` if the key, should it be one of the database, is revoked or expires within the block."""
        return self.engine.keys.watch(self.key, stop) if self.key.id else contextlib.nullcontext()

    def describe(self) -> dict[str, Any]:
        """Return the fields of a log line about it. The query may hold a secret, and a path that is no route, or has an
        id that is none of ours, may hold anything: neither is logged."""
        path, named = self.scope["path"], self.params.get("id")
        if not (path in self.paths or (self.params and all(map(_ID.fullmatch, self.params.values())))):
            path, named = "(unknown)", None
        owner, end_user = split(self.owner)
        return {
            "request_id": self.request_id,
            "response_id": self.response_id or (named if path.startswith("/v1/responses/") else None),
            "conversation_id": named if path.startswith("/v1/conversations/") else None,
            "owner": owner,
            "end_user": end_user,
            "method": self.scope.get("method", "GET"),
            "path": path,
            "status": self.status,
            "disconnected": self.disconnected or None,
        }

    def idempotency_key(self) -> str | None:
        """Return the Idempotency-Key, which is at most MAX_KEY characters long (D17)."""
        key = self.header(b"idempotency-key")
        if key is not None and len(key) > MAX_KEY:
            message = f"An Idempotency-Key has at most {MAX_KEY} characters, not {len(key)}."
            raise InvalidRequest(message, param="Idempotency-Key")
        return key

    def read_whose(self) -> tuple[str, Paging]:
        """Return whose things a list is of: the caller's or, as an admin asks by `owner`, another's or all (`*`)."""
        given, paging = dict(self.query), read_paging(self)
        name, end_user = given.get("owner"), given.get("end_user")
        if end_user is not None:
            if not self.key.acts_for and self.key.role != "admin":
                message = "end_user is for keys that act for end users (`outlive keys new --acts-for`), and for admins."
                raise Forbidden(message, param="end_user", code="end_user_not_allowed")
            if not USER_NAME.fullmatch(end_user) or split(self.owner)[1] not in (None, end_user):
                raise InvalidRequest("end_user must be an end user's name, as in Outlive-End-User.", param="end_user")
        if name is None:
            return self.owner if end_user is None else join(split(self.owner)[0], end_user), paging
        self.check_admin("Lists of other owners are")
        if name != "*" and not OWNER_NAME.fullmatch(name):
            raise InvalidRequest("owner must be the name of an owner, or *.", param="owner")
        if name == "*" and end_user is not None:
            raise InvalidRequest("end_user needs the name of an owner, not *.", param="end_user")
        return "" if name == "*" else join(name, end_user), msgspec.structs.replace(paging, wide=True)

    def read_filters(self, paging: Paging, special: Json) -> Filters:
        """Read the filters that all lists have, besides the special ones of this list."""
        given, pairs = dict(self.query), [(name, value) for name, value in self.query if name.startswith("metadata")]
        if "metadata" in given or len(dict(pairs)) < len(pairs) or len(pairs) > MAX_PAIRS:
            message = f"Filter by metadata[KEY]=VALUE, once for each key, with {MAX_PAIRS} keys at most."
            raise InvalidRequest(message, param=pairs[0][0])
        if pairs and paging.wide and not self.reads_all:
            raise InvalidRequest("The metadata of other owners is not shown, so no list is by it.", param=pairs[0][0])
        names = [name for name, _ in self.query]
        for name in ("model", "created_after", "created_before", "end_user", "owner"):
            if names.count(name) > 1:  # one of them would be ignored
                raise InvalidRequest(f"{name} must not be given twice.", param=name)
        filters = {**special, "model": given.get("model")}
        for name in {"created_after", "created_before"} & given.keys():
            filters[name] = min(max(read_int(given[name], name), -MAX_SECONDS), MAX_SECONDS)
        return Filters(**filters, metadata={name[len("metadata[") : -1]: value for name, value in pairs})

    def check_admin(self, subject: str) -> None:
        """Raise Forbidden for a key without the role admin. The subject and its verb begin the sentence."""
        if self.key.role != "admin":
            raise Forbidden(
                f"{subject} for keys with the role admin, not {self.key.role}: those of `outlive keys new --role "
                "admin --database URL`, and of owners that --admin names.",
                code="admin_required",
            )

    async def json(self) -> Any:
        """Read and decode the body; an empty one is an empty object."""
        raw = await self._read()
        if not raw:
            return {}
        if self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            # Web pages can send other types without a preflight, so this also keeps pages out.
            raise UnsupportedMedia
        if self.headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
            raise UnsupportedMedia("Compressed bodies are not read: send this one without Content-Encoding.")
        self.size = len(raw) if len(raw) > LARGE_BYTES else 0
        if self.size and (size := await self.work(weigh_raw, raw)) > self.size:
            self.size, self.held_texts = size, await self._hold(self.texts, size)
        return await self.work(decode_body, raw)

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that works on the body; in a thread if that is large."""
        return await asyncio.to_thread(function, *args, **kwargs) if self.size else function(*args, **kwargs)

    async def object(self) -> dict[str, Any]:
        """Read and decode a body that must be an object."""
        body = await self.json()
        if not isinstance(body, dict):
            raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
        return body

    async def fields(self, shape: Any, *required: str) -> Json:
        """Read those fields of a body that its shape has. Raises InvalidRequest."""
        body = await self.object()
        for name in required:
            if body.get(name) is None:
                refuse_missing(name)
        checks = _find_checks(shape)
        return {name: check_value(checks[name], body[name], name) for name in checks if body.get(name) is not None}

    async def _read(self) -> bytearray:
        length = self.headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else 0  # it need not be
        body, more = bytearray(), True
        while True:
            size = max(declared, len(body))
            if size > self.max_body:
                raise TooLarge(f"The request body is larger than the {self.max_body} bytes that this server takes.")
            if size > LARGE_BYTES and not self.held:
                self.held = await self._hold(self.bodies, declared or self.max_body)
            if not more:
                return body
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            body += message.get("body", b"")
            more = message.get("more_body", False)

    async def decode_message(self, raw: bytes) -> Any:
        """Decode a large message of a WebSocket, which counts like a body meanwhile. Raises TooMany."""
        if not self.turns.take(self.owner, len(raw)):  # it is in memory already, so it cannot wait for others
            raise TooMany("Your other large messages are still being read. Try again later.", retry_after=5)
        held = 0
        try:
            held = await self._hold(self.texts, await asyncio.to_thread(weigh_raw, raw))
            return await asyncio.to_thread(decode_body, raw)
        finally:
            self.turns.release(self.owner, len(raw))
            if held:
                self.texts.release(self.owner, held)

    async def _hold(self, budget: ByteBudget, size: int) -> int:
        """Wait until the owner's other large bodies leave room for one of this size."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await budget.acquire(self.owner, size)
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

    def release_body(self) -> None:
        """Give back the room that the body took: it was stored or refused."""
        if self.held:
            self.bodies.release(self.owner, self.held)
        if self.held_texts:
            self.texts.release(self.owner, self.held_texts)
        self.held = self.held_texts = 0

    def is_abandoned(self) -> bool:
        """Return True if the client is gone, so that nothing may be begun for it: it may have asked another node by
        now, and been answered."""
        if left := self.has_left():
            self.connection.cut()  # uvicorn may not know yet, and would log that the request was not answered
        return left

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
        self.status = status
        raw = [(b"content-type", content_type.encode()), (b"x-request-id", self.request_id.encode()), VERSION]
        if length is not None:
            raw.append((b"content-length", b"%d" % length))
        for extra in (headers, self.extra_headers):
            raw += [(name.encode(), value.encode("latin-1", "replace")) for name, value in extra.items()]
        kind = "websocket.http" if self.scope["type"] == "websocket" else "http"
        await self.send({"type": f"{kind}.response.start", "status": status, "headers": raw})

    async def reply(self, reply: Reply) -> None:
        body = reply.body
        if self.reservation is not None:
            self.reservation.settle(len(body))
        if not (reply.headers or self.extra_headers or len(body) > PIECE_BYTES):
            head = f"content-type: {reply.content_type}\r\nx-request-id: {self.request_id}\r\n{VERSION_LINE}"
            if self.connection.answer_now(reply.status, head.encode(), body):
                self.status = reply.status
                return
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
        message = "The server made a mistake. If it happens again, report it with this id"
        return ServerFault(f"{message}: {self.request_id}.")

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


def read_paging(request: Request) -> Paging:
    """Read `after`, `limit` and `order` of a list."""
    given = dict(request.query)
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
        message = f"{param} must be a whole number, not {text!r}."
        raise InvalidRequest(message, param=param, code="invalid_type") from None


def read_bool(text: str | None, param: str) -> bool:
    if text is None or text.lower() in ("false", "0", ""):
        return False
    if text.lower() in ("true", "1"):
        return True
    raise InvalidRequest(f"{param} must be true or false, not {text!r}.", param=param, code="invalid_type")


async def list_owned(request: Request, verb: Callable[..., Awaitable[Page]], **special: Any) -> Reply:
    """Answer with a list of the caller's things or, for admins, of others' without what those may not see."""
    owner, paging = request.read_whose()
    page = await verb(owner, paging, request.read_filters(paging, special))
    if paging.wide and not request.reads_all:
        page = Page([hide_content(each) for each in page.data], page.has_more)
    return list_reply(page)


def list_reply(page: Page) -> Reply:
    first, last = (page.data[0]["id"], page.data[-1]["id"]) if page.data else (None, None)
    ends = {"first_id": first, "last_id": last, "has_more": page.has_more}
    return json_reply({"object": "list", "data": page.data, **ends})
