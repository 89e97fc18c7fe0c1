"""Access: owners by their keys (without keys, only programs of this machine), and cross-origin requests."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections import OrderedDict
from hashlib import sha256

from outlive.core.errors import Forbidden, InvalidRequest, Unauthenticated
from outlive.http import tickets
from outlive.http.addresses import group, is_loopback
from outlive.http.request import Reply, Request, while_connected
from outlive.http.security import SecurityLog

LOCAL = "local"
# Sent twice, they would mean one thing to a proxy and another to this server.
_ONCE = ("authorization", "host", "origin")
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})

# Wrong keys that an address may send before its answers are delayed, and the seconds of the first and longest delay.
FREE_TRIES = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
# Seconds without a wrong key after which an address is forgotten, and how many addresses are remembered.
FORGET_SECONDS = 600.0
MAX_ADDRESSES = 10_000

EXPOSED_HEADERS = "x-request-id, retry-after, openai-poll-after-ms, x-outlive-version"
METHODS = "GET, POST, DELETE, OPTIONS"
# Requested by browsers on the SDK's behalf; x-stainless-* is a family, so requested headers are checked one by one.
ALLOWED_HEADER = re.compile(
    r"authorization|content-type|accept|idempotency-key|openai-(organization|project|beta)|last-event-id"
    r"|x-client-request-id|x-stainless-.*"
)


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
    """Checks keys, which are kept as digests only and compared in constant time, and the origins of web pages."""

    def __init__(
        self, keys: dict[str, list[str]], origins: list[str], security: SecurityLog, admins: list[str]
    ) -> None:
        self._security = security
        self._admins = frozenset(admins)
        self._wrong_keys = WrongKeys()
        self._digests = [(sha256(key.encode()).digest(), owner) for owner, own in keys.items() for key in own]
        self._origins = frozenset(origins)

    async def admit_admin(self, request: Request) -> None:
        """Admit a program of this machine, or an admin's key. Raises Unauthenticated or Forbidden."""
        if is_loopback(self._security.find_address(request.scope)):
            try:
                self._check_local(request)
            except Forbidden:
                pass  # by another name, or from a web page: it needs a key
            else:
                return
        if await self.admit(request) not in self._admins:
            raise Forbidden(
                "The metrics are for this machine and for admins. Start the server with --admin NAME to let an owner's "
                "keys read them, or with --metrics-port.",
                code="admin_required",
            )

    async def admit(self, request: Request) -> str:
        """Return the owner of a request; one with a wrong key or ticket has to wait for its refusal."""
        ticket = dict(request.query()).get("ticket") if b"ticket=" in request.scope["query_string"] else None
        try:
            return self._find_owner(request) if ticket is None else await self._find_owner_of(ticket, request)
        except Unauthenticated as error:
            if ticket is not None or b"authorization" in request.headers:
                address = self._security.find_address(request.scope)
                self._security.count("key refused", address, code=error.code or "")
                pause = self._wrong_keys.add(group(address), asyncio.get_running_loop().time())
                await while_connected(request, asyncio.sleep(pause))
            raise

    def _find_owner(self, request: Request) -> str:
        """Return the owner of a request. Raises Unauthenticated, Forbidden or InvalidRequest."""
        if len(request.headers) != len(request.scope["headers"]):
            _refuse_repeated(request)
        if not self._digests:
            self._check_local(request)
            return LOCAL
        scheme, _, key = (request.header(b"authorization") or "").partition(" ")
        digest = sha256(key.strip().encode("utf-8", "replace")).digest()
        owner = None
        for known, name in self._digests:
            if hmac.compare_digest(known, digest):
                owner = name
        if owner is None or scheme.lower() != "bearer":
            raise Unauthenticated
        return owner

    async def _find_owner_of(self, ticket: str, request: Request) -> str:
        """Return the owner of a request's ticket. Raises as `_find_owner` does."""
        if not self._digests:
            self._check_local(request)
        request.ticket = await tickets.admit(request, ticket)
        if self._digests and all(name != request.ticket.owner for _, name in self._digests):
            raise Unauthenticated  # an owner that was removed from the settings
        return request.ticket.owner

    def _check_local(self, request: Request) -> None:
        """Refuse web pages while there are no keys: neither a name that resolves here nor another origin is allowed."""
        host = (request.header(b"host") or "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in _LOCAL_HOSTS:
            raise Forbidden(
                "This server has no keys, so it answers only to localhost. Start it with --api-key NAME=KEY to use "
                "another name.",
                code="forbidden_host",
            )
        origin = request.header(b"origin")
        if origin is not None and origin not in self._origins and origin.rpartition("://")[2].lower() != host:
            raise Forbidden(
                f"Pages of {origin} may not use this server. Start it with --cors-origin {origin} to allow them.",
                code="forbidden_origin",
            )

    def cors_headers(self, request: Request) -> dict[str, str]:
        """Return the headers of an answer to a cross-origin request; none for any other."""
        if not self._origins:
            return {}
        origin = request.header(b"origin")
        if origin is None or not (origin in self._origins or "*" in self._origins):
            return {"vary": "origin"}
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED_HEADERS}
        return {**allowed, "vary": "origin"}


def _refuse_repeated(request: Request) -> None:
    names = [name for name, _ in request.scope["headers"]]
    for name in _ONCE:
        if names.count(name.encode()) > 1:
            raise InvalidRequest(f"The header '{name}' must not be sent twice.", param=name)


def answer_preflight(request: Request) -> Reply | None:
    """Return the answer to a preflight request; None for any other request."""
    if request.scope["method"] != "OPTIONS" or request.header(b"access-control-request-method") is None:
        return None
    asked = [name.strip().lower() for name in (request.header(b"access-control-request-headers") or "").split(",")]
    allowed = [name for name in asked if ALLOWED_HEADER.fullmatch(name)]
    headers = {"access-control-allow-methods": METHODS, "access-control-allow-headers": ", ".join(allowed)}
    return Reply(b"", 204, headers | {"access-control-max-age": "600"})
