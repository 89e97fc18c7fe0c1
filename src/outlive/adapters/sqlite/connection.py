"""One SQLite file: its lock, its one writer thread with group commit, and its readers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

from outlive import armed
from outlive.adapters.sqlite.checkpoint import Checkpointer
from outlive.core.errors import OutliveError, SettingsError, StorageUnavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SCHEMA_VERSION = 1
BUSY_MS = 2000
CHECKPOINT_BUSY_MS = 100
READERS = 3
# After a commit of k jobs the next one waits so long for each of them, at most so long in all: a commit costs more
# than the jobs in it, so under load it should carry many.
PAUSE_PER_JOB = 0.0005
MAX_PAUSE = 0.002
# A batch this large is committed even if more is waiting, so that nobody waits for a whole stampede.
MAX_JOBS = 256


class Job(Generic[T]):
    """One piece of writing, and whoever waits for it."""

    __slots__ = ("error", "future", "name", "result", "work")

    def __init__(self, name: str, work: Work[T], future: asyncio.Future[T]) -> None:
        self.name = name
        self.work = work
        self.future = future
        self.result: T | None = None
        self.error: Exception | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]


class Database:
    """The file. All writing goes through one thread, which commits everything that waits in one transaction."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.healthy = True
        self._lock = _lock_file(path)
        try:
            self._writer = _open(path)
            _migrate(self._writer, path)
        except sqlite3.Error as error:
            raise SettingsError(f"The database {path} cannot be opened: {error}.") from error
        self._loop = asyncio.get_running_loop()
        # What waits for the next commit, whether one is under way, and when the next may begin.
        self._gathered: list[Job[Any]] = []
        self._writing = False
        self._rest_until = 0.0
        self._batches: queue.SimpleQueue[list[Job[Any]]] = queue.SimpleQueue()
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="outlive-reader")
        self._opened: list[sqlite3.Connection] = []
        self._checkpointer = Checkpointer(path, _open(path))
        self._thread = threading.Thread(target=self._write_forever, name="outlive-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, work: Work[T]) -> asyncio.Future[T]:
        """Run `work` in the writer's next transaction. It must check before it writes: an error undoes nothing."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._gathered.append(Job(name, work, future))
        if len(self._gathered) == 1 and not self._writing:
            self._hand_over_soon()
        return future

    def read(self, name: str, work: Work[T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._readers, self._read, name, work)

    async def probe(self) -> bool:
        """Whether the database can be written; asks it only when it last could not."""
        if not self.healthy:
            with contextlib.suppress(StorageUnavailable):
                # Sets what is set already, but a page is written for it: only that tells whether the disk has room.
                await self.write("probe", lambda db: db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}"))
        return self.healthy

    async def checkpoint(self) -> None:
        """Move the log into the file and empty it. A transaction cannot do that, so it has a connection of its own."""

        def work() -> None:
            try:
                with contextlib.closing(_open(self.path)) as connection:
                    # Nobody can write while this waits for a reader to finish, so it does not wait for long.
                    connection.execute(f"PRAGMA busy_timeout = {CHECKPOINT_BUSY_MS}")
                    (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as error:
                raise StorageUnavailable("checkpoint", str(error)) from error
            if busy:
                raise StorageUnavailable("checkpoint", "somebody is reading")

        await asyncio.to_thread(work)

    async def close(self) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self.write("close", lambda _: None)  # and with it everything that was to be written before
        self._batches.put([])
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._checkpointer.close)
        self._readers.shutdown(wait=True)
        for connection in (*self._opened, self._writer):
            connection.close()
        os.close(self._lock)

    # -- group commit: one batch is being written while the next one gathers

    def _hand_over_soon(self) -> None:
        pause = self._rest_until - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self._hand_over)
        else:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        jobs, self._gathered = self._gathered[:MAX_JOBS], self._gathered[MAX_JOBS:]
        self._writing = True
        self._batches.put(jobs)

    def _settle(self, jobs: list[Job[Any]]) -> None:
        self._writing = False
        self._rest_until = self._loop.time() + min(len(jobs) * PAUSE_PER_JOB, MAX_PAUSE)
        for job in jobs:
            job.settle()
        if self._gathered:
            self._hand_over_soon()

    # -- the writer thread

    def _write_forever(self) -> None:
        while jobs := self._batches.get():
            self._commit(jobs)
            self._loop.call_soon_threadsafe(self._settle, jobs)
            if self._checkpointer.wanted:
                self._checkpointer.finish(self._writer)

    def _commit(self, jobs: list[Job[Any]]) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # Another program holds the file; none of these is the cause, and each alone would only take longer.
            self.healthy = False
            for job in jobs:
                job.error = StorageUnavailable(job.name, str(error))
            return
        try:
            self._transact(jobs)
            self.healthy = True
        except Exception as error:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            if len(jobs) > 1:
                # One of them may be the cause: each alone, so that the others are not refused with it.
                for job in jobs:
                    self._commit([job])
            elif isinstance(error, sqlite3.Error):
                self.healthy = isinstance(error, sqlite3.IntegrityError)
                jobs[0].error = StorageUnavailable(jobs[0].name, str(error))
            else:
                # A mistake of ours: whoever asked gets to see it, and the writer lives on.
                jobs[0].error = error

    def _transact(self, jobs: list[Job[Any]]) -> None:
        for job in jobs:
            try:
                job.error = None
                job.result = job.work(self._writer)
            except OutliveError as error:
                job.error = error
        if armed.is_armed:
            _reach("before-commit", jobs)
        self._writer.execute("COMMIT")
        if armed.is_armed:
            _reach("after-commit", jobs)

    # -- the readers

    def _read(self, name: str, work: Work[T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = _open(self.path, read_only=True)
                self._opened.append(connection)
            return work(connection)
        except sqlite3.Error as error:
            raise StorageUnavailable(name, str(error)) from error


def load_queries(file: str = "queries.sql") -> dict[str, str]:
    """The statements of a .sql file by name: each stands under a line `-- name --`."""
    text = resources.files("outlive.adapters.sqlite").joinpath(file).read_text()
    parts = re.split(r"^-- (\w+) --$", text, flags=re.M)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def _reach(point: str, jobs: list[Job[Any]]) -> None:
    """Every commit is an armed point, by itself and by what it commits: `before-commit`, `before-commit-of-close`."""
    armed.reach(point)
    for job in jobs:
        armed.reach(f"{point}-of-{job.name.replace(' ', '-')}")


def _open(path: str, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return connection
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # see checkpoint.py
    # Deleted content is overwritten with zeros, so that it is not in the file any more (D18).
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise SettingsError(
            f"The database {path} was written by a newer Outlive (schema {version}, this one knows {SCHEMA_VERSION}); "
            "use that version."
        )
    folder = resources.files("outlive.adapters.sqlite").joinpath("migrations")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        number = int(file.name[:4])
        if number > version:
            connection.executescript(f"BEGIN IMMEDIATE; {file.read_text()}; PRAGMA user_version = {number}; COMMIT;")


def _lock_file(path: str) -> int:
    """Hold a lock beside the file for as long as this process lives; the database's own locks are not enough.

    The descriptor is not inherited, so a child that outlives the server does not keep the lock.
    """
    try:
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"The database {path} cannot be opened: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"Another Outlive server is already running on {path}; stop it first, or give this one another --database."
        ) from error
    return descriptor
