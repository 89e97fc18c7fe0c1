"""The one writer of a SQLite file: everything that waits goes into one commit.

The statements of a batch run on the event loop, where they only touch memory (some 50 µs for a whole admission); the
commit, which waits for the disk, runs in a thread. Were the statements run in the thread too, it would have to win the
interpreter's lock back after each one, against a loop that is busy exactly when much is to be written. Work that takes
long (erasing, recovering, large inputs) is marked as heavy and runs in the thread as a whole; so does a batch that
failed on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outlive.core.errors import OutliveError, StorageUnavailable
from outlive.storage.batching import Batching, hit_failpoints, settle
from outlive.storage.sqlite.files import DatabaseFile

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# How long the thread waits for another program that holds the file. The loop does not wait at all.
BUSY_MS = 2000

CHECKPOINT_SECONDS = 1.0
# Below the first size a checkpoint gains nothing; above the second, the log should begin again at its start.
MIN_LOG_BYTES = 4 * 1024 * 1024
MAX_LOG_BYTES = 32 * 1024 * 1024
PAGE_BYTES = 4096


class Job(msgspec.Struct):
    """A unit of work for the next transaction, and its caller's future."""

    name: str
    work: Work[Any]
    future: asyncio.Future[Any]
    heavy: bool
    result: Any = None  # or the error


class SqliteWriter(Batching[Job]):
    """Commits one batch while the next one gathers, so loop and thread never use the connection at once."""

    def __init__(self, connection: sqlite3.Connection, checkpointer: Checkpointer, file: DatabaseFile) -> None:
        super().__init__()
        self._file = file
        self.healthy = True
        self._began = False  # the transaction of the last batch
        self._connection = connection
        self._checkpointer = checkpointer
        # Batches on their way to the disk, and whether their statements have been run; an empty one is the end.
        self._batches: queue.SimpleQueue[tuple[list[Job], bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_forever, name="outlive-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, work: Work[T], heavy: bool = False) -> asyncio.Future[T]:
        """Run `work` in the next transaction. It must check before it writes: an OutliveError undoes nothing."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._file.lost:
            future.set_exception(StorageUnavailable(name, "the database file was removed or replaced"))
            return future
        self._add(Job(name, work, future, heavy))
        return future

    async def close(self) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self.write("close", lambda _: None)  # and with it everything that was to be written before
        self._batches.put(([], False))
        await asyncio.to_thread(self._thread.join)
        self._connection.close()

    # -- on the loop

    def _start(self, batch: list[Job]) -> None:
        light = not any(job.heavy for job in batch)
        self._batches.put((batch, light and self._run(batch) is None))

    def _settle(self, jobs: list[Job]) -> None:
        for job in jobs:
            settle(job.future, job.result)
        self._finish(len(jobs))

    # -- in the thread

    def _write_forever(self) -> None:
        while True:
            jobs, was_run = self._batches.get()
            if not jobs:
                return
            if not (was_run and self._commit(jobs) is None):
                # From the start, waiting for a program that holds the file.
                self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
                self._write(jobs)
                self._connection.execute("PRAGMA busy_timeout = 0")
            if self._checkpointer.wanted:
                self._checkpointer.wanted = False
                _checkpoint(self._connection)
            self._loop.call_soon_threadsafe(self._settle, jobs)

    def _write(self, jobs: list[Job]) -> None:
        """Run and commit a batch; where that fails, each job alone."""
        error = self._run(jobs)
        began = error is None or self._began
        error = error or self._commit(jobs)
        if error is None:
            return
        if began and len(jobs) > 1:
            # One of them may be the cause: each alone, so that the others are not refused with it.
            for job in jobs:
                self._write([job])
            return
        # A transaction that did not begin (another program holds the file) would only take longer for each alone.
        if isinstance(error, sqlite3.Error):
            self.healthy = isinstance(error, sqlite3.IntegrityError)
        for job in jobs:
            job.result = StorageUnavailable(job.name, str(error)) if isinstance(error, sqlite3.Error) else error

    # -- on either

    def _run(self, jobs: list[Job]) -> Exception | None:
        """Run the statements of a batch up to its commit. Returns the error with which it was undone."""
        self._began = False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._began = True
            for job in jobs:
                try:
                    job.result = job.work(self._connection)
                except OutliveError as error:  # its result: it has written nothing. Any other undoes the transaction.
                    job.result = error
        except Exception as error:  # a bug in one job must reach its caller, and not end the writer of all
            self._roll_back()
            return error
        return None

    def _commit(self, jobs: list[Job]) -> sqlite3.Error | None:
        try:
            hit_failpoints("before", (job.name for job in jobs))
            self._connection.execute("COMMIT")
            hit_failpoints("after", (job.name for job in jobs))
        except sqlite3.Error as error:
            self._roll_back()
            return error
        self.healthy = True
        return None

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")


class Checkpointer:
    """Copies the write-ahead log into the file in a thread of its own, so that no commit waits for the copy of many.

    The log can begin again at its start only at a moment without writes. So when it has grown long, the writer is asked
    to copy the last part itself, which is little by then.
    """

    def __init__(self, path: str, connection: sqlite3.Connection, file: DatabaseFile) -> None:
        self._file = file
        self.wanted = False  # by the writer, between two commits
        self._log = Path(path + "-wal")
        self._connection = connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outlive-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while not self._stop.wait(CHECKPOINT_SECONDS):
            self._file.look()
            with contextlib.suppress(OSError):  # there is no log yet
                if self._log.stat().st_size >= MIN_LOG_BYTES:
                    self.wanted = _checkpoint(self._connection) >= MAX_LOG_BYTES


def _checkpoint(connection: sqlite3.Connection) -> int:
    """Copy what can be copied now. Returns how many bytes of the log are in use: its file never shrinks."""
    # A failure (a full disk, say) loses nothing: the log is as durable as the file, and the next try comes soon.
    with contextlib.suppress(sqlite3.Error):
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return int(frames) * PAGE_BYTES
    return 0
