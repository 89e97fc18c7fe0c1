"""Open connections: one as a request knows it; how many there may be, in all and from one address; the times that they
must keep."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from outlive.http.security import SecurityLog, group
from outlive.http.transport import Turns

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
# Seconds between two warnings of the same kind.
QUIET_SECONDS = 60.0


class ClientConnection:
    """A connection to a client, with no more than ASGI offers."""

    __slots__ = ("_on_cut", "_receive", "_waiting", "is_cut")

    def __init__(self, receive: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.is_cut = False  # the client is gone
        self._on_cut: Callable[[], None] | None = None
        self._receive = receive  # returns a message when the client is gone; None: `cut` is called then
        self._waiting: asyncio.Task[None] | None = None

    def write_now(self, body: bytes) -> bool:
        """Write a piece of a streamed body at once, or write nothing and return False: the client is slow or gone."""
        return False

    def answer_now(self, status: int, headers: bytes, body: bytes) -> bool:
        """Write a whole answer at once, with these lines as headers, or write nothing and return False."""
        return False

    def is_hung_up(self) -> bool:
        """Return True if the client is gone, also if only the operating system knows that by now."""
        return self.is_cut

    def watch(self, on_cut: Callable[[], None] | None) -> None:
        """Call `on_cut` once the client is gone, which `send` does not report; at once if it is. None stops that."""
        self._on_cut = on_cut
        if self._waiting is not None:
            self._waiting.cancel()
        if on_cut is not None and self.is_cut:
            on_cut()
        elif on_cut is not None and self._receive is not None:
            self._waiting = asyncio.create_task(self._wait_cut(self._receive))

    async def _wait_cut(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cut()

    async def was_read(self) -> bool:
        """Return True if the client has read the whole answer, as far as can be known. Call after the last send."""
        return False  # ASGI does not show it: a retry is given this answer again, instead of a second one

    def cut(self) -> None:
        """Note that the client is gone."""
        self.is_cut = True
        if self._on_cut is not None:
            self._on_cut()


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that concern connections."""

    max_connections: int = 10_000
    max_connections_per_address: int = 1_000
    receive_seconds: float = 30.0
    send_seconds: float = 120.0


# Ends a connection if it has exceeded a limit by now.
Check = Callable[[float, ConnectionLimits], None]


class Connections:
    """All connections of a server, each by the function that checks it every second."""

    def __init__(self, limits: ConnectionLimits, security: SecurityLog | None = None) -> None:
        self.turns = Turns()
        self._limits = limits
        self.security = security or SecurityLog()
        self._groups: dict[Check, str] = {}  # of each connection
        self._counts: Counter[str] = Counter()
        self.unfinished = 0  # bytes of messages of WebSockets that have not come whole
        self._is_checking = False
        self._interval = min(CHECK_SECONDS, limits.receive_seconds / 4, limits.send_seconds / 4)
        self._warned_at: dict[str, float] = {}

    def find_excess(self, address: str) -> str | None:
        """Return the limit that one more connection from this address would exceed."""
        if len(self._groups) >= self._limits.max_connections:
            self._warn("max_connections (%d) are open: new ones are refused", self._limits.max_connections)
            return "The server has too many connections."
        most = self._limits.max_connections_per_address
        if self._counts[group(address)] >= most and not self.security.is_proxy(address):
            self._warn("max_connections_per_address (%d) are open from %s: new ones are refused", most, group(address))
            return "There are too many connections from your address."
        return None

    def add(self, check: Check, address: str) -> None:
        self._groups[check] = group(address)
        self._counts[group(address)] += 1
        if not self._is_checking:
            self._is_checking = True
            asyncio.get_running_loop().call_later(self._interval, self._check)

    def remove(self, check: Check) -> None:
        if (counted := self._groups.pop(check, None)) is not None:
            self._counts[counted] -= 1
            if not self._counts[counted]:
                del self._counts[counted]

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        for check in list(self._groups):
            check(loop.time(), self._limits)
        try:
            os.close(os.dup(2))
        except OSError as error:
            # The loop accepts and closes them, and says nothing.
            self._warn("new connections are closed at once (%s): raise LimitNOFILE or ulimit -n", error.strerror)
        self._is_checking = bool(self._groups)
        if self._is_checking:
            loop.call_later(self._interval, self._check)

    def _warn(self, message: str, *values: object) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_at.get(message, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._warned_at[message] = now
            log.warning(message, *values)
