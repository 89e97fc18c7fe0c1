"""The one writer of a SQLite file: everything that waits goes into one commit.

The statements of a batch run on the event loop, where they only touch memory (some 50 µs for a whole admission); the
commit, which waits for the disk, runs in a thread. Were the statements run in the thread too, it would have to win the
interpreter's lock back after each one, against a loop that is busy exactly when much is to be written. What takes long
(erasing, recovering, large inputs) says so and runs in the thread as a whole; so does a batch that met an obstacle.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from outlive import failpoints
from outlive.core.errors import OutliveError, StorageUnavailable
from outlive.storage.sqlite.checkpoint import Checkpointer

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

# How long the thread waits for another program that holds the file. The loop does not wait at all.
BUSY_MS = 2000
# After a commit of several jobs the next one waits so long for each but the first, at most so long in all: a commit
# costs more than the jobs in it, so under load it should carry many.
PAUSE_PER_JOB = 0.0005
MAX_PAUSE = 0.002
# A batch this large is committed even if more is waiting, so that nobody waits for a whole stampede.
MAX_JOBS = 256


class Job(Generic[T]):
    """One piece of writing, and whoever waits for it."""

    __slots__ = ("error", "future", "heavy", "name", "result", "work")

    def __init__(self, name: str, work: Work[T], future: asyncio.Future[T], heavy: bool) -> None:
        self.name = name
        self.work = work
        self.future = future
        self.heavy = heavy
        self.result: T | None = None
        self.error: Exception | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Do it. An error of ours is an answer, and has written nothing; any other undoes the transaction."""
        try:
            self.error = None
            self.result = self.work(connection)
        except OutliveError as error:
            self.error = error

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class Writer:
    """One batch is being committed while the next one gathers, so loop and thread never use the connection at once."""

    def __init__(self, connection: sqlite3.Connection, checkpointer: Checkpointer) -> None:
        self.healthy = True
        self._connection = connection
        self._checkpointer = checkpointer
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Job[Any]] = []
        self._writing = False
        self._rest_until = 0.0
        # Batches on their way to the disk, and whether their statements have been run; an empty one is the end.
        self._batches: queue.SimpleQueue[tuple[list[Job[Any]], bool]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_forever, name="outlive-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, work: Work[T], heavy: bool = False) -> asyncio.Future[T]:
        """Run `work` in the next transaction. It must check before it writes: an error undoes nothing."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._gathered.append(Job(name, work, future, heavy))
        if len(self._gathered) == 1 and not self._writing:
            self._hand_over_soon()
        return future

    async def close(self) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self.write("close", lambda _: None)  # and with it everything that was to be written before
        self._batches.put(([], False))
        await asyncio.to_thread(self._thread.join)
        self._connection.close()

    # -- on the loop

    def _hand_over_soon(self) -> None:
        pause = self._rest_until - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self._hand_over)
        else:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        jobs, self._gathered = self._gathered[:MAX_JOBS], self._gathered[MAX_JOBS:]
        self._writing = True
        light = not any(job.heavy for job in jobs)
        self._batches.put((jobs, light and self._run_all(jobs)))

    def _run_all(self, jobs: list[Job[Any]]) -> bool:
        """Run a batch's statements up to its commit; False when something stood in the way, and nothing was done."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.run(self._connection)
            return True
        except Exception:
            self._roll_back()
            return False

    def _settle(self, jobs: list[Job[Any]]) -> None:
        self._writing = False
        self._rest_until = self._loop.time() + min((len(jobs) - 1) * PAUSE_PER_JOB, MAX_PAUSE)
        for job in jobs:
            job.settle()
        if self._gathered:
            self._hand_over_soon()

    # -- in the thread

    def _write_forever(self) -> None:
        while True:
            jobs, was_run = self._batches.get()
            if not jobs:
                return
            if not (was_run and self._commit(jobs)):
                self._write_patiently(jobs)
            if self._checkpointer.wanted:
                self._checkpointer.finish(self._connection)
            self._loop.call_soon_threadsafe(self._settle, jobs)

    def _commit(self, jobs: list[Job[Any]]) -> bool:
        """Commit what was run on the loop; False when that failed, and nothing was done."""
        try:
            self._end_transaction(jobs)
            return True
        except sqlite3.Error:
            self._roll_back()
            return False

    def _write_patiently(self, jobs: list[Job[Any]]) -> None:
        """From the start, waiting for whoever holds the file."""
        self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        self._write(jobs)
        self._connection.execute("PRAGMA busy_timeout = 0")

    def _write(self, jobs: list[Job[Any]]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # Another program holds the file; none of these is the cause, and each alone would only take longer.
            self.healthy = False
            for job in jobs:
                job.error = StorageUnavailable(job.name, str(error))
            return
        try:
            for job in jobs:
                job.run(self._connection)
            self._end_transaction(jobs)
        except Exception as error:
            self._roll_back()
            if len(jobs) > 1:
                # One of them may be the cause: each alone, so that the others are not refused with it.
                for job in jobs:
                    self._write([job])
            elif isinstance(error, sqlite3.Error):
                self.healthy = isinstance(error, sqlite3.IntegrityError)
                jobs[0].error = StorageUnavailable(jobs[0].name, str(error))
            else:
                # A mistake of ours: whoever asked gets to see it, and the writer lives on.
                jobs[0].error = error

    def _end_transaction(self, jobs: list[Job[Any]]) -> None:
        if failpoints.is_set:
            _reach("before-commit", jobs)
        self._connection.execute("COMMIT")
        if failpoints.is_set:
            _reach("after-commit", jobs)
        self.healthy = True

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("ROLLBACK")


def _reach(point: str, jobs: list[Job[Any]]) -> None:
    """Every commit is an armed point, by itself and by what it commits: `before-commit`, `before-commit-of-close`."""
    failpoints.hit(point)
    for job in jobs:
        failpoints.hit(f"{point}-of-{job.name.replace(' ', '-')}")
