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
from typing import Any, Generic, TypeVar

from outlive import armed
from outlive.core.errors import OutliveError, SettingsError, StorageUnavailable

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

SCHEMA_VERSION = 1
BUSY_MS = 2000
READERS = 3
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
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._local = threading.local()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="outlive-reader")
        self._opened: list[sqlite3.Connection] = []
        self._thread = threading.Thread(target=self._write_forever, name="outlive-writer", daemon=True)
        self._thread.start()

    def write(self, name: str, work: Work[T]) -> asyncio.Future[T]:
        """Run `work` in the writer's next transaction. It must check before it writes: an error undoes nothing."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(Job(name, work, future))
        return future

    def read(self, name: str, work: Work[T]) -> Awaitable[T]:
        return self._loop.run_in_executor(self._readers, self._read, name, work)

    async def probe(self) -> bool:
        """Whether the database can be written; asks it only when it last could not."""
        if not self.healthy:
            with contextlib.suppress(StorageUnavailable):
                await self.write("probe", lambda db: db.execute("UPDATE leases SET fence = fence WHERE response = -1"))
        return self.healthy

    async def checkpoint(self) -> None:
        """Move the log into the file and empty it. A transaction cannot do that, so it has a connection of its own."""

        def work() -> None:
            connection = _open(self.path)
            try:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise StorageUnavailable("checkpoint", str(error)) from error
            finally:
                connection.close()

        await asyncio.to_thread(work)

    async def close(self) -> None:
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        self._readers.shutdown(wait=True)
        for connection in (*self._opened, self._writer):
            connection.close()
        os.close(self._lock)

    # -- the writer thread

    def _write_forever(self) -> None:
        job = self._jobs.get()
        while job is not None:
            jobs = [job]
            # Whatever has gathered meanwhile goes into the same commit.
            while (job := self._next_now()) is not None and len(jobs) < MAX_JOBS:
                jobs.append(job)
            self._commit(jobs)
            self._loop.call_soon_threadsafe(_settle, jobs)
            job = job or self._jobs.get()

    def _next_now(self) -> Job[Any] | None:
        """The next job, if one waits already. The end mark is left for the blocking get to find."""
        try:
            job = self._jobs.get_nowait()
        except queue.Empty:
            return None
        if job is None:
            self._jobs.put(None)
        return job

    def _commit(self, jobs: list[Job[Any]]) -> None:
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
        self._writer.execute("BEGIN IMMEDIATE")
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


def _settle(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.settle()


def _open(path: str, read_only: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return connection
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
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
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
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
