"""A Postgres database: pools of connections that write or read, each opened again after it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar

import asyncpg

from outlive import failpoints
from outlive.core.errors import OutliveError, SettingsError, StorageUnavailable
from outlive.core.events import Json
from outlive.ports.storage import LoadedItems
from outlive.storage.batching import hit_failpoints
from outlive.storage.postgres.durability import Risk, find_risks
from outlive.storage.postgres.schema import PACKAGE, SEARCH_PATH, migrate
from outlive.storage.queries import load_queries
from outlive.storage.rows import decode_items

SQL = load_queries(PACKAGE)
SECRET_BYTES = 32

T = TypeVar("T")
Connection: TypeAlias = Any  # asyncpg.Connection, which has no types of its own
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

# Admission, append and close have one connection each, for any other write may have to wait for a lock.
HOT = 3
WRITERS = 3
READERS = 4
NODE_CONNECTIONS = HOT + WRITERS + READERS + 2  # and one each for the bell and the heartbeat
CONNECT_SECONDS = 5.0
# How long one statement may take, its wait for a lock included, before the database counts as unavailable.
STATEMENT_SECONDS = 30.0
LOCK_SECONDS = 10
# A node that is stopped in the middle of a transaction must not keep its locks.
IDLE_SECONDS = 10
# While a lost connection's last transaction is in doubt: how long until the next check.
RESOLVE_SECONDS = 0.5

# The connection is gone, or will be: its last statement may or may not have taken effect.
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # shut down, crashed, terminated, cancelled
    asyncpg.ReadOnlySQLTransactionError,  # it was the primary, and is a standby now
    asyncpg.IdleInTransactionSessionTimeoutError,
    OSError,  # TimeoutError included
)
ERRORS = (*LOST, asyncpg.PostgresError)
# A bug of ours: it must be seen, not tried again.
MISTAKES = (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)

# One statement's own trouble: the next may pass.
HARMLESS = (asyncpg.TransactionRollbackError, asyncpg.ProgramLimitExceededError)


class InDoubt(StorageUnavailable):
    """The connection was lost during a commit, which may or may not have happened."""

    def __init__(self, operation: str, cause: str, token: int) -> None:
        super().__init__(operation, cause)
        self.token = token


class StatementFailed(StorageUnavailable):
    """The database refused what it was given, over a connection that is sound: something smaller may pass."""


class PooledConnection(NamedTuple):
    """A connection that holds an advisory lock of its own, the token. Once another session can take that lock, this one
    is over, and its last transaction is decided."""

    connection: Connection
    token: int


class ConnectionPool:
    """At most `size` connections, opened when needed; the one that was used last is used next."""

    def __init__(self, open_one: Callable[[], Awaitable[PooledConnection]], size: int) -> None:
        self._open = open_one
        self._slots = asyncio.Semaphore(size)
        self.size = size
        self.used = 0
        self._idle: list[PooledConnection] = []

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[PooledConnection]:
        async with self._slots:
            pooled = await self._find()
            sound = False
            self.used += 1
            try:
                yield pooled
                sound = True
            except (OutliveError, asyncpg.PostgresError) as error:
                sound = not isinstance(error, LOST)
                raise
            finally:
                self.used -= 1
                if sound and not pooled.connection.is_closed():
                    self._idle.append(pooled)
                else:
                    pooled.connection.terminate()

    async def _find(self) -> PooledConnection:
        while self._idle:
            pooled = self._idle.pop()
            if not pooled.connection.is_closed():
                return pooled
        return await self._open()

    async def close(self) -> None:
        for pooled in self._idle:
            with contextlib.suppress(*ERRORS):
                await pooled.connection.close(timeout=2)
        self._idle.clear()


class PostgresDatabase:
    """A database with its schema up to date. Made by `open`."""

    sign, queries = "$", SQL

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.healthy = True
        self.clock_offset: float | None = None  # seconds from this machine's monotonic clock to the database's clock
        self.generation = 0  # how often a writing connection was lost: each time a standby may have been promoted
        self._hot = ConnectionPool(self._open_pooled, HOT)
        self._writers = ConnectionPool(self._open_pooled, WRITERS)
        self._readers = ConnectionPool(self._open_pooled, READERS)

    @classmethod
    async def open(cls, dsn: str) -> PostgresDatabase:
        """Connect and bring the schema up to date. Raises SettingsError when that fails."""
        await migrate_database(dsn)
        return cls(dsn)

    async def close(self) -> None:
        for pool in (self._hot, self._writers, self._readers):
            await pool.close()

    async def read(self, name: str, work: Work[T]) -> T:
        try:
            async with self._readers.use() as pooled:
                return await work(pooled.connection)
        except MISTAKES:
            raise
        except ERRORS as error:
            raise StorageUnavailable(name, describe(error)) from error

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        return list(await self.read("find", lambda db: db.fetch(statement, *map(_to_sql, values))))

    async def change(self, name: str, statement: str, *values: Any) -> list[Any]:
        return list(await self.write(name, lambda db: db.fetch(statement, *map(_to_sql, values))))

    async def load(self, statement: str, *values: Any) -> list[Json]:
        return await decode_items(await self.fetch(statement, *values))

    async def load_some(self, statement: str, *values: Any, most: int) -> LoadedItems:
        rows = await self.fetch(_SOME.format(statement=statement.removesuffix(";"), most=most), *values)
        return LoadedItems(await decode_items(rows), sum(len(row[0]) for row in rows) <= most)

    async def write(self, name: str, work: Work[T], *, hot: bool = False) -> T:
        """Run one statement, and so one transaction. Raises InDoubt when it is unknown whether it was committed."""
        token = None
        try:
            async with (self._hot if hot else self._writers).use() as pooled:
                token = pooled.token
                if failpoints.is_set:
                    hit_failpoints("before", [name])
                result = await work(pooled.connection)
                if failpoints.is_set:
                    hit_failpoints("after", [name])
                self.healthy = True
                return result
        except MISTAKES:
            raise
        except LOST as error:
            self.healthy = False
            self.generation += 1
            if token is None:
                raise StorageUnavailable(name, describe(error)) from error
            raise InDoubt(name, describe(error), token) from error
        except asyncpg.LockNotAvailableError as error:
            self.healthy = False
            raise StorageUnavailable(name, describe(error)) from error
        except asyncpg.PostgresError as error:
            self.healthy = isinstance(error, HARMLESS)
            raise StatementFailed(name, describe(error)) from error

    async def transact(self, name: str, work: Work[T]) -> T:
        """Run several statements in one transaction."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.write(name, inside)

    async def transact_once(self, name: str, work: Work[T], find: Work[T | None]) -> T:
        """Run a transaction that must not be repeated: when it is in doubt, `find` looks for its result."""
        try:
            return await self.transact(name, work)
        except InDoubt as doubt:
            found = await self.resolve(doubt, find)
            if found is None:
                raise
            return found

    async def resolve(self, doubt: InDoubt, find: Work[T]) -> T:
        """Wait until the lost connection's last transaction is decided, then run `find`: however long that takes."""

        async def work(connection: Connection) -> T:
            await connection.execute(_END_SESSION, doubt.token)
            await connection.execute("SELECT pg_advisory_lock($1)", doubt.token)
            await connection.execute("SELECT pg_advisory_unlock($1)", doubt.token)
            return await find(connection)

        while True:
            try:
                return await self.write(doubt.operation, work)
            except StorageUnavailable:
                await asyncio.sleep(RESOLVE_SECONDS)

    def count_connections(self) -> dict[str, tuple[int, int]]:
        pools = {"hot": self._hot, "write": self._writers, "read": self._readers}
        return {name: (pool.used, pool.size) for name, pool in pools.items()}

    async def probe(self) -> bool:
        """Return True if the database can be written. Tries it only if the last write failed."""
        if not self.healthy:
            with contextlib.suppress(StorageUnavailable):
                await self.write("probe", lambda connection: connection.execute("SELECT pg_current_xact_id()"))
        return self.healthy

    async def find_risks(self) -> list[Risk]:
        """Find the ways in which committed data may be lost."""
        return await self.read("find risks", find_risks)

    async def find_secret(self, name: str) -> bytes:
        """Return the secret of that name that all nodes share; the first node draws it."""

        async def work(db: Connection) -> bytes:
            await db.execute(SQL["add_secret"], name, os.urandom(SECRET_BYTES))
            return bytes(await db.fetchval(SQL["find_secret"], name))

        return await self.transact("find secret", work)

    async def read_clock(self) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self.read("clock", self._read_clock)

    async def _read_clock(self, connection: Connection) -> None:
        asked = time.monotonic()
        self.clock_offset = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8") - asked

    async def _open_pooled(self) -> PooledConnection:
        connection = await connect(self.dsn)
        token = secrets.randbits(62)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(connection.terminate)
            await connection.execute("SELECT pg_advisory_lock($1)", token)
            await self._read_clock(connection)
            on_failure.pop_all()
        return PooledConnection(connection, token)


class PostgresPort:
    """Base of the adapters of ports on a Postgres database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database


async def connect_once(dsn: str) -> Connection:
    """Open a first connection. Raises SettingsError when the database cannot be reached."""
    try:
        return await connect(dsn, patient=True)
    except (*ERRORS, ValueError) as error:
        raise SettingsError(f"The database cannot be reached: {describe(error)}.") from error


async def migrate_database(dsn: str) -> tuple[int, int]:
    """Bring the schema up to date. Returns its version before and after. Raises SettingsError when that fails."""
    connection = await connect_once(dsn)
    try:
        encoding = connection.get_settings().server_encoding
        if encoding.upper() not in ("UTF8", "UTF-8"):
            raise SettingsError(f"The database's encoding is {encoding}; Outlive needs one with UTF8.")
        return await migrate(connection)
    except ERRORS as error:
        raise SettingsError(f"The database cannot be prepared: {describe(error)}.") from error
    finally:
        await connection.close()


# The rows of a statement up to the one with which their bodies have more bytes. Lengths are known without the bodies.
_SOME = """
SELECT u.body FROM (
    SELECT s.body, s.n, sum(octet_length(s.body)) OVER (ORDER BY s.n) - octet_length(s.body) AS earlier
      FROM (SELECT q.body, row_number() OVER () AS n FROM ({statement}) q) s) u
 WHERE u.earlier <= {most} ORDER BY u.n
"""

# Ends the session that holds this lock, if it still lives on the server's side.
_END_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1
"""


async def connect(dsn: str, settings: dict[str, str] | None = None, *, patient: bool = False) -> Connection:
    """Connect to the primary: of several hosts in the DSN, the one that can be written.

    `patient`: its statements have no time limit.
    """
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_SECONDS,
        command_timeout=None if patient else STATEMENT_SECONDS,
        target_session_attrs="read-write",
        max_cached_statement_lifetime=0,
        server_settings={
            "application_name": "outlive",
            "search_path": SEARCH_PATH,
            # The statements are few and simple: to plan each anew would cost more than a better plan could save.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            # Every read has its index, and must use it even while statistics are young.
            "enable_seqscan": "off",
            "lock_timeout": f"{LOCK_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
            "client_min_messages": "error",
            **(settings or {}),
        },
    )


def describe(error: BaseException) -> str:
    """Describe an error in one line, without its detail, which may hold a client's content."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "message", None) or str(error)
    return f"{type(error).__name__}: {text}".splitlines()[0].rstrip(".") if text else type(error).__name__


def _to_sql(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(as_text, value))
    return as_text(value) if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """Make text that Postgres can store: without the NUL character, which no id of ours has."""
    text = str(value)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def ids_of(items: list[Json]) -> list[str]:
    return [as_text(item["id"]) for item in items]


def lock_key(*names: str) -> int:
    """Name an advisory lock, for work that nodes must do one after the other and that has no row to lock.

    Two names may share a lock, which costs a wait and nothing else. Nodes of two versions must agree on the names.
    """
    digest = blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
