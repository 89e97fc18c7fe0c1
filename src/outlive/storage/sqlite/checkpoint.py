"""Moving the log into the database file, beside the writer instead of in its way."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

EVERY_SECONDS = 1.0
# Below this there is nothing to gain; above the second, the log should begin again at its start.
MIN_LOG_BYTES = 4 * 1024 * 1024
MAX_LOG_BYTES = 32 * 1024 * 1024
PAGE_BYTES = 4096


class Checkpointer:
    """Copies what is committed in a thread of its own, so that no commit waits for the copying of many.

    Only a moment without writing lets the log begin again, so when it has grown long the writer is asked to copy the
    last bit itself, which is little by then.
    """

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.wanted = False  # the writer's turn: see `finish`
        self._log = Path(path + "-wal")
        self._connection = connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlive-checkpoint", daemon=True)
        self._thread.start()

    def finish(self, writer: sqlite3.Connection) -> None:
        """Called by the writer between two commits."""
        self.wanted = False
        checkpoint(writer)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            if self._size() >= MIN_LOG_BYTES:
                self.wanted = checkpoint(self._connection) >= MAX_LOG_BYTES

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


def checkpoint(connection: sqlite3.Connection) -> int:
    """Copy what can be copied now; how many bytes of the log are in use. (Its file stays as long as it ever was.)"""
    # It failing (a full disk, say) loses nothing: the log is as durable as the file, and the next try comes soon.
    with contextlib.suppress(sqlite3.Error):
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(frames) * PAGE_BYTES
    return 0
