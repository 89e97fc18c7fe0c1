"""The heartbeat on Postgres: a thread of each node renews the expiry time in that node's row."""

import asyncio
import contextlib
import logging
import threading
import time

from outlive.ports.storage import HUNG_SECONDS, Heartbeat
from outlive.storage.batching import settle
from outlive.storage.packing import JOURNAL_FORMAT
from outlive.storage.postgres.connection import ERRORS, Connection, connect, describe
from outlive.storage.postgres.schema import SQL

log = logging.getLogger(__name__)

MAX_BEAT_SECONDS = 3.0
RETRY_SECONDS = 0.5
LAST_SECONDS = 2.0


class PostgresHeartbeat(Heartbeat):
    def __init__(self, dsn: str, worker: str, lease_seconds: float) -> None:
        self._dsn = dsn
        self._worker = worker
        self._lease = lease_seconds
        self._ticked = time.monotonic()
        self._valid_until = 0.0  # on this machine's clock, counted from before the last beat was sent
        self._stopping = threading.Event()
        self._beaten: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        beaten = self._beaten = asyncio.get_running_loop().create_future()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._beat_forever()), name="outlive-heartbeat", daemon=True
        )
        self._thread.start()
        await beaten

    def tick(self) -> None:
        self._ticked = time.monotonic()

    def is_beating(self) -> bool:
        return time.monotonic() < self._valid_until

    async def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, LAST_SECONDS + MAX_BEAT_SECONDS)

    # -- in the thread

    async def _beat_forever(self) -> None:
        connection: Connection | None = None
        pause, between = 0.0, min(self._lease / 4, MAX_BEAT_SECONDS)
        # Nothing else runs on this thread's loop, so it may block.
        while not self._stopping.wait(pause):
            try:
                if connection is None or connection.is_closed():
                    connection = await connect(self._dsn)
                now = time.monotonic()
                if now - self._ticked < HUNG_SECONDS:  # else the server's loop hangs
                    arguments = (self._worker, self._lease, JOURNAL_FORMAT)
                    await connection.execute(SQL["beat"], *arguments, timeout=max(self._lease / 2, 1.0))
                    self._valid_until = now + self._lease
                    if self._beaten is not None:  # the first: `start` waits for it, on the server's loop
                        self._beaten.get_loop().call_soon_threadsafe(settle, self._beaten, None)
                        self._beaten = None
                pause = between
            except ERRORS as error:
                log.warning("heartbeat failed: %s", describe(error))
                if connection is not None:
                    connection.terminate()
                connection, pause = None, RETRY_SECONDS
        if connection is not None:
            with contextlib.suppress(*ERRORS):
                await connection.execute(SQL["stop_beating"], self._worker, timeout=LAST_SECONDS)
                await connection.close(timeout=LAST_SECONDS)
