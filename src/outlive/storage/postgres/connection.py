"""A Postgres database: pools of connections that write or read, each opened again after it was lost."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import asyncpg

from outlive.core.errors import OutliveError, SettingsError, StorageUnavailable
from outlive.core.events import Json
from outlive.ports.database import Database, LoadedItems, Transaction, decode_items, encode
from outlive.ports.database import Work as TransactionWork
from outlive.storage.batching import cut, hit_failpoints
from outlive.storage.postgres.schema import SEARCH_PATH, SQL, migrate
from outlive.storage.rows import weigh

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
PIECE_BYTES = 256 * 1024  # of large input, in one message

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
            while self._idle and self._idle[-1].connection.is_closed():
                self._idle.pop()
            pooled = self._idle.pop() if self._idle else await self._open()
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

    async def close(self) -> None:
        for pooled in self._idle:
            with contextlib.suppress(*ERRORS):
                await pooled.connection.close(timeout=2)
        self._idle.clear()


class PostgresDatabase(Database):
    """A database with its schema up to date. Made by `open`."""

    sign, queries = "$", SQL

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.healthy = True
        self.clock_offset: float | None = None  # seconds from this machine's monotonic clock to the database's clock
        self.generation = 0  # how often a writing connection was lost: each time a standby may have been promoted
        sizes = {"hot": HOT, "write": WRITERS, "read": READERS}
        self._pools = {name: ConnectionPool(self._open_pooled, size) for name, size in sizes.items()}

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect and bring the schema up to date. Raises SettingsError when that fails."""
        await migrate_database(dsn)
        return cls(dsn)

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    async def read(self, name: str, work: Work[T]) -> T:
        try:
            async with self._pools["read"].use() as pooled:
                return await work(pooled.connection)
        except MISTAKES:
            raise
        except ERRORS as error:
            raise StorageUnavailable(name, describe(error)) from error

    async def fetch(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        sql = self.find_statement(statement, parts)
        return list(await self.read("find", lambda db: db.fetch(sql, *map(_to_sql, values))))

    async def change(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        sql = self.find_statement(statement, parts)
        operation = statement.replace("_", " ")
        return list(await self.write(operation, lambda db: db.fetch(sql, *map(_to_sql, values))))

    async def load(self, statement: str, *values: Any, **parts: str) -> list[Json]:
        return await decode_items(await self.fetch(statement, *values, **parts))

    async def load_some(self, statement: str, *values: Any, most: int, **parts: str) -> LoadedItems:
        sql = self.find_statement(statement, parts).removesuffix(";")
        rows = await self.fetch(_SOME.format(statement=sql, most=most), *values)
        sizes = accumulate(weigh(row[0]) for row in rows)
        fitting = sum(size <= most for size in sizes)
        return LoadedItems(await decode_items(rows[: fitting + 1]), fitting == len(rows))

    async def write(self, name: str, work: Work[T], *, hot: bool = False) -> T:
        """Run one statement, and so one transaction. Raises InDoubt when it is unknown whether it was committed."""
        token = None
        try:
            async with self._pools["hot" if hot else "write"].use() as pooled:
                token = pooled.token
                hit_failpoints("before", [name])
                result = await work(pooled.connection)
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

    async def atomically(
        self,
        operation: str,
        work: TransactionWork[T],
        *,
        find: TransactionWork[T | None] | None = None,
        large: list[Json] | None = None,
        heavy: bool = False,
    ) -> T:
        try:
            return await self.transact(operation, lambda db: work(PostgresTransaction(db, bool(large))))
        except InDoubt as doubt:
            found = None if find is None else await self.resolve(doubt, lambda db: find(PostgresTransaction(db)))
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
        return {name: (pool.used, pool.size) for name, pool in self._pools.items()}

    async def probe(self) -> bool:
        """Return True if the database can be written. Tries it only if the last write failed."""
        if not self.healthy:
            with contextlib.suppress(StorageUnavailable):
                await self.write("probe", lambda connection: connection.execute("SELECT pg_current_xact_id()"))
        return self.healthy

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


class PostgresTransaction(Transaction):
    def __init__(self, db: Connection, large: bool = False) -> None:
        self._db = db
        self._large = large

    async def fetch(self, name: str, *values: Any) -> list[Any]:
        return list(await self._db.fetch(SQL[name], *map(_to_sql, values)))

    lock = read_bodies = erase_items = fetch  # items are stored whole

    async def run_all(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            await self._db.executemany(SQL[name], rows)

    async def add_items(self, thread: int, first: int, items: list[Json]) -> None:
        ids = ids_of(items)
        if self._large:
            staging_id = secrets.token_hex(16)
            await stage(self._db, staging_id, items)
            await self.fetch("move_staged_items", staging_id, ids, list(range(1, len(ids) + 1)), thread, first)
        else:
            await self.fetch("add_items", thread, first, ids, [encode(item) for item in items])

    async def drop_item(self, thread: int, item_id: str) -> bool:
        return bool(await self.fetch("drop_item", thread, item_id))


async def stage(db: Connection, staging_id: str, items: list[Json]) -> None:
    """Write large input in pieces, so that no single message is so long that it blocks the event loop. The transaction
    that accepts it first writes the pieces to an unlogged table (`stash`), in which items are numbered from 1, and then
    joins them: if it is undone, so are they."""
    batches = await asyncio.to_thread(lambda: list(cut(_to_pieces(items), lambda piece: len(piece[2]), PIECE_BYTES)))
    for batch in batches:
        await db.execute(SQL["add_pieces"], staging_id, *map(list, zip(*batch, strict=True)))


def _to_pieces(items: list[Json]) -> Iterator[tuple[int, int, bytes]]:
    for number, item in enumerate(items, 1):
        body = encode(item)
        for piece, at in enumerate(range(0, len(body), PIECE_BYTES)):
            yield number, piece, body[at : at + PIECE_BYTES]


async def connect_once(dsn: str) -> Connection:
    """Open a first connection. Raises SettingsError when the database cannot be reached."""
    try:
        return await connect(dsn, unlimited=True)
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


async def connect(dsn: str, settings: dict[str, str] | None = None, *, unlimited: bool = False) -> Connection:
    """Connect to the primary: of several hosts in the DSN, the one that can be written. If `unlimited`, its statements
    have no time limit."""
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_SECONDS,
        command_timeout=None if unlimited else STATEMENT_SECONDS,
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
        return list(map(_to_sql, value))
    return as_text(value) if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """Make text that Postgres can store: without the NUL character, which no id of ours has."""
    text = str(value)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text


def ids_of(items: list[Json]) -> list[str]:
    return [as_text(item["id"]) for item in items]
