"""Access: owners by their keys (without keys, only programs of this machine), and cross-origin requests."""

import asyncio
import contextlib
import re
from collections import OrderedDict
from typing import Literal

import msgspec

from outlive.core.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated
from outlive.core.owners import Oidc, join, split
from outlive.engine.keys import Keys, digest_of
from outlive.http.oidc import TokenVerifier
from outlive.http.request import NO_KEY, USER_NAME, Reply, Request, while_connected
from outlive.http.security import SecurityLog, group, is_loopback
from outlive.ports.storage import Key, Ticket

END_USER = b"outlive-end-user"
# Sent twice, they would mean one thing to a proxy and another to this server.
_ONCE = ("authorization", "host", "origin", END_USER.decode())
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

# Wrong keys that an address may send before its answers are delayed, and the seconds of the first and longest delay.
FREE_TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
# Seconds without a wrong key after which an address is forgotten, and how many addresses are remembered.
FORGET_SECONDS = 600.0
MAX_ADDRESSES = 10_000

EXPOSED_HEADERS = "x-request-id, retry-after, x-should-retry, openai-poll-after-ms, x-outlive-version"
METHODS = "GET, POST, DELETE, OPTIONS"
# Requested by browsers on the SDK's behalf; x-stainless-* is a family, so requested headers are checked one by one.
# Firefox and Safari request user-agent too, which OpenAI's SDK and Vercel's set.
ALLOWED_HEADER = re.compile(
    r"authorization|content-type|accept|idempotency-key|openai-(organization|project|beta)|last-event-id"
    r"|user-agent|x-client-request-id|x-stainless-.*"
)


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that concern requests: who may ask, from where, and how much."""

    keys: dict[str, list[str]] = {}
    require_keys: bool = False  # also while there is none
    admin_reads_content: bool = False
    oidc: Oidc | None = None
    admins: list[str] = []  # owners whose keys have the role admin
    cors_origins: list[str] = []
    trusted_proxies: list[str] = []
    root_path: str = "/"
    max_body_bytes: int = 64 * 1024 * 1024
    lenient_chat: bool = False
    console: bool = True
    websocket_seconds: float = 3600.0
    role: Literal["all", "api", "worker"] = "all"  # a worker answers health checks only


class WrongKeys:
    """Counts wrong keys by address: each one more doubles the pause before the answer. Valid keys never wait."""

    def __init__(self) -> None:
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, and the time of the last one

    def add(self, address: str, now: float) -> float:
        """Count a wrong key, and return the seconds to wait before it is refused."""
        tries, last = self._tries.pop(address, (0, now))
        tries = 1 if now - last > FORGET_SECONDS else tries + 1
        self._tries[address] = (tries, now)
        if len(self._tries) > MAX_ADDRESSES:
            self._tries.popitem(last=False)
        if tries <= FREE_TRIES:
            return 0.0
        return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(tries - FREE_TRIES - 1, 30))


class Auth:
    """Checks keys, which are kept as digests only, and the origins of web pages."""

    def __init__(self, access: Access, security: SecurityLog, keys: Keys) -> None:
        self._security = security
        self._wrong_keys = WrongKeys()
        # By their digests: a lookup takes no time that says anything about a key.
        self._given = {
            digest_of(key): Key("", owner, "admin" if owner in access.admins else "user")
            for owner, own in access.keys.items()
            for key in own
        }
        self._owners = frozenset(access.keys)
        self._origins = frozenset(access.cors_origins)
        self._keys = keys
        self._reads_all = access.admin_reads_content
        self._tokens = TokenVerifier(access.oidc, keys.clock) if access.oidc is not None else None
        self._always = access.require_keys or bool(access.keys or access.oidc)

    async def admit_admin(self, request: Request) -> None:
        """Admit a program of this machine, or an admin's key. Raises Unauthenticated or Forbidden."""
        if is_loopback(self._security.find_address(request.scope)):
            with contextlib.suppress(Forbidden):  # by another name, or from a web page: it needs a key
                self._check_local(request)
                return
        await self.admit(request)
        if request.ticket is None:  # a ticket is a 404 there
            request.check_admin("From other machines, the metrics (without --metrics-port) are")

    async def admit(self, request: Request) -> None:
        """Find the owner and the key of a request; one with a wrong key or ticket has to wait for its refusal."""
        ticket = dict(request.query).get("ticket") if b"ticket=" in request.scope["query_string"] else None
        try:
            request.key = await (self._find_key(request) if ticket is None else self._find_key_of(ticket, request))
        except Unauthenticated as error:
            if ticket is not None or b"authorization" in request.headers:
                address = self._security.find_address(request.scope)
                secret = (request.header(b"authorization") or "").partition(" ")[2]
                void, why = self._keys.find_void(digest_of(secret.strip()))
                about = (void.owner, why, void.id) if void is not None else ("", error.code or "")
                self._security.count("key refused", address, *about)
                pause = self._wrong_keys.add(group(address), asyncio.get_running_loop().time())
                await while_connected(request, asyncio.sleep(pause))
            raise
        request.owner = request.key.owner
        if END_USER in request.headers:
            if not request.key.acts_for:
                message = (
                    "Outlive-End-User needs a key that acts for end users, made with `outlive keys new --acts-for`."
                )
                raise Forbidden(message, param="Outlive-End-User", code="end_user_not_allowed")
            if not USER_NAME.fullmatch(end_user := request.header(END_USER) or ""):
                message = "Outlive-End-User must be 1 to 256 visible ASCII characters, without a space."
                raise InvalidRequest(message, param="Outlive-End-User")
            request.owner = join(request.owner, end_user)
        request.reads_all = self._reads_all and request.key.role == "admin"
        if request.key.role == "read" and request.scope.get("method", "POST") not in ("GET", "HEAD"):
            raise Forbidden("This key has the role read: it may only GET, not over a WebSocket.", code="read_only_key")

    @property
    def _needs_key(self) -> bool:
        return self._always or self._keys.exist

    async def _find_key(self, request: Request) -> Key:
        """Return the key of a request, or the rights of the token that it has in place of one. Raises Unauthenticated,
        Forbidden or InvalidRequest."""
        if len(request.headers) != len(request.scope["headers"]):
            names = [name for name, _ in request.scope["headers"]]
            for name in _ONCE:
                if names.count(name.encode()) > 1:
                    raise InvalidRequest(f"The header '{name}' must not be sent twice.", param=name)
        if not self._needs_key:
            self._check_local(request)
            return NO_KEY
        scheme, _, secret = (request.header(b"authorization") or "").partition(" ")
        digest = digest_of(secret.strip())
        if scheme.lower() == "bearer":
            if (key := self._given.get(digest) or self._keys.find(digest)) is not None:
                return key
            if self._tokens is not None and secret.count(".") == 2:
                return await self._tokens.verify(secret.strip(), digest)
        raise Unauthenticated

    async def _find_key_of(self, ticket: str, request: Request) -> Key:
        """Return the rights that a request's ticket gives: to read, and no more. Raises as `_find_key` does."""
        if not self._needs_key:
            self._check_local(request)
        if request.scope["type"] != "http" or request.scope["method"] not in ("GET", "HEAD"):
            raise Forbidden("A ticket opens GET requests only.", code="ticket_read_only")
        request.ticket = await request.engine.tickets.find(ticket)
        # An address with a ticket in it is no place to find the answer again.
        request.extra_headers |= {"cache-control": "no-store", "referrer-policy": "no-referrer"}
        owner = split(request.ticket.owner)[0]
        if self._needs_key and not self._tokens and owner not in self._owners and not self._keys.has_owner(owner):
            raise Unauthenticated  # an owner that has no key any more; which ones have tokens, the provider knows
        return Key("", request.ticket.owner)

    def _check_local(self, request: Request) -> None:
        """Refuse web pages while there are no keys: neither a name that resolves here nor another origin is allowed."""
        host = (request.header(b"host") or "").lower()
        name, _, port = host.rpartition(":")
        if (name if port.isdigit() else host) not in _LOCAL_HOSTS:
            message = "This server has no keys, so it answers only to localhost."
            raise Forbidden(f"{message} Start it with --api-key NAME=KEY to use another name.", code="forbidden_host")
        origin = request.header(b"origin")
        if origin is not None and origin not in self._origins and origin.rpartition("://")[2].lower() != host:
            message = f"Pages of {origin} may not use this server. Start it with --cors-origin {origin} to allow them."
            raise Forbidden(message, code="forbidden_origin")

    def cors_headers(self, request: Request) -> dict[str, str]:
        """Return the headers of an answer to a cross-origin request; none for any other."""
        if not self._origins:
            return {}
        origin = request.header(b"origin")
        if origin is None or not (origin in self._origins or "*" in self._origins):
            return {"vary": "origin"}
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED_HEADERS}
        return {**allowed, "vary": "origin"}


async def check_ticket(request: Request, ticket: Ticket, path: str | None) -> None:
    """Refuse a request for anything but what its ticket is for. Raises NotFound. `path` is that of its route; None: no
    ticket opens it."""
    if path == "/v1/responses/{id}":
        opened = await request.engine.tickets.opens_response(ticket, request.params["id"])
    else:
        named = [value for name, value in request.query if name == "conversation"]
        opened = path is not None and [ticket.target] == (named if path == "/v1/responses" else [request.params["id"]])
    if not opened:
        raise NotFound("There is no such thing, or your ticket is for another one.")


def answer_preflight(request: Request) -> Reply:
    asked = [name.strip().lower() for name in (request.header(b"access-control-request-headers") or "").split(",")]
    allowed = [name for name in asked if ALLOWED_HEADER.fullmatch(name)]
    headers = {"access-control-allow-methods": METHODS, "access-control-allow-headers": ", ".join(allowed)}
    return Reply(b"", 204, headers | {"access-control-max-age": "600"})
