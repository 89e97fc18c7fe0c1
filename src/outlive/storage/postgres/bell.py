"""The bell on Postgres: NOTIFY after the commit, on a connection of its own, all rings that gathered in one statement.

Within the transaction that writes, NOTIFY would hold a lock that all writers of the database need; here it costs them
nothing. A ring while the connection is down is lost; listeners get `missed` once it is up again.
"""

import asyncio
import contextlib
import logging
from typing import Any, cast

from outlive.ports.bell import Bell, Kind, Listener, Ring
from outlive.storage.batching import cut
from outlive.storage.postgres.connection import ERRORS, Connection, connect, describe

log = logging.getLogger(__name__)

CHANNEL = "outlive"
# The longest that Postgres takes is 8,000 bytes: one ring more than this fits.
PAYLOAD_BYTES = 7800
# How long until a lost connection is tried again, and how often an idle one is checked.
RETRY_SECONDS = 0.5
CHECK_SECONDS = 5.0

_NOTIFY = "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS payload"


class PostgresBell(Bell):
    """Rings between `start` and `close`. Made on the loop."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._listeners: list[Listener] = []
        self._pending: dict[tuple[Kind, str], int] = {}
        self._wanted = asyncio.Event()
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect; where that fails, go on trying in the background."""
        self._task = asyncio.create_task(self._serve())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_SECONDS):
                await self._connected.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def ring(self, ring: Ring) -> None:
        if not self._connected.is_set():
            return
        about = (ring.kind, ring.response_id)
        number = self._pending.get(about)
        if number is None or number < ring.number:
            self._pending[about] = ring.number
        self._wanted.set()

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def _serve(self) -> None:
        first = True
        while True:
            try:
                connection = await connect(self._dsn, {"synchronous_commit": "off"})
            except ERRORS as error:
                log.warning("bell connection failed: %s", describe(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                connection.add_termination_listener(lambda _: self._wanted.set())
                await connection.add_listener(CHANNEL, self._receive)
                self._connected.set()
                if not first:
                    self._notify(Ring("missed"))
                first = False
                await self._ring_forever(connection)
            except ERRORS as error:
                log.warning("bell connection lost: %s", describe(error))
            finally:
                self._connected.clear()
                self._pending.clear()
                connection.terminate()
            await asyncio.sleep(RETRY_SECONDS)

    async def _ring_forever(self, connection: Connection) -> None:
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=CHECK_SECONDS)
                continue
            self._wanted.clear()
            pending, self._pending = self._pending, {}
            lines = (f"{kind} {number} {response_id}" for (kind, response_id), number in pending.items())
            payloads = ["\n".join(part) for part in cut(lines, lambda line: len(line) + 1, PAYLOAD_BYTES)]
            await connection.execute(_NOTIFY, CHANNEL, payloads, timeout=CHECK_SECONDS)

    def _receive(self, connection: Any, sender: int, channel: str, payload: object) -> None:
        if sender == connection.get_server_pid():
            return  # this node's own
        for line in str(payload).split("\n"):
            kind, _, rest = line.partition(" ")
            number, _, response_id = rest.partition(" ")
            if number.lstrip("-").isdigit():  # a newer node may send what this one does not understand
                self._notify(Ring(cast(Kind, kind), response_id, int(number)))

    def _notify(self, ring: Ring) -> None:
        for listener in self._listeners:
            listener(ring)
