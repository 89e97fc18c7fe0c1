"""The heart on Postgres: one row per node, which lives for as long as a thread of that node says so."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

from outlive.ports.heartbeat import HUNG_SECONDS
from outlive.storage.postgres.connection import ERRORS, Connection, connect, describe

log = logging.getLogger(__name__)

MAX_BEAT_SECONDS = 3.0
RETRY_SECONDS = 0.5
LAST_SECONDS = 2.0

# On the database's clock alone. A row that has expired meanwhile is simply written again.
_BEAT = """
INSERT INTO workers (name, started_at, expires_at)
VALUES ($1, clock_timestamp(), clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at
"""
_STOP = "DELETE FROM workers WHERE name = $1"


class PostgresHeartbeat:
    def __init__(self, dsn: str, worker: str, lease_seconds: float) -> None:
        self._dsn = dsn
        self._worker = worker
        self._lease = lease_seconds
        self._ticked = time.monotonic()
        self._holds_until = 0.0  # the last beat; on our clock, counted from before it was sent
        self._stopping = threading.Event()
        self._beaten: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        beaten = self._beaten = self._loop.create_future()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="outlive-heart", daemon=True)
        self._thread.start()
        await beaten

    def tick(self) -> None:
        self._ticked = time.monotonic()

    def is_beating(self) -> bool:
        return time.monotonic() < self._holds_until

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, LAST_SECONDS + MAX_BEAT_SECONDS)

    # -- in the thread

    async def _live(self) -> None:
        connection: Connection | None = None
        pause = 0.0
        while not self._rest(pause):
            try:
                if connection is None or connection.is_closed():
                    connection = await connect(self._dsn)
                pause = await self._beat(connection)
            except ERRORS as error:
                log.warning("the heart could not beat: %s", describe(error))
                if connection is not None:
                    connection.terminate()
                connection, pause = None, RETRY_SECONDS
        if connection is not None:
            with contextlib.suppress(*ERRORS):
                await connection.execute(_STOP, self._worker, timeout=LAST_SECONDS)
                await connection.close(timeout=LAST_SECONDS)

    async def _beat(self, connection: Connection) -> float:
        """Beat once, unless the loop hangs; how long until the next."""
        seconds = min(self._lease / 4, MAX_BEAT_SECONDS)
        now = time.monotonic()
        if now - self._ticked < HUNG_SECONDS:
            await connection.execute(_BEAT, self._worker, self._lease, timeout=max(self._lease / 2, 1.0))
            self._holds_until = now + self._lease
            self._tell()
        return seconds

    def _rest(self, seconds: float) -> bool:
        """Wait; whether it is time to stop."""
        # Nothing else runs on this thread's loop, so it may wait as threads do.
        return self._stopping.wait(seconds)

    def _tell(self) -> None:
        """The first beat: whoever waits for it is on the other loop."""
        beaten, self._beaten = self._beaten, None
        if beaten is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(_settle, beaten)


def _settle(beaten: asyncio.Future[None]) -> None:
    if not beaten.done():
        beaten.set_result(None)
