"""A Postgres database: a few connections that write, a few that read, each opened again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import asyncpg

from outlive import failpoints
from outlive.core.errors import OutliveError, SettingsError, StorageUnavailable
from outlive.storage.postgres.durability import Risk, find_risks
from outlive.storage.postgres.schema import SEARCH_PATH, migrate

log = logging.getLogger(__name__)

T = TypeVar("T")
Connection: TypeAlias = Any  # asyncpg.Connection, which has no types of its own
Work: TypeAlias = Callable[[Connection], Awaitable[T]]

# Accepting, appending and ending have each one for themselves: whatever else is written may wait for somebody's lock.
HOT = 3
WRITERS = 3
READERS = 4
NODE_CONNECTIONS = HOT + WRITERS + READERS + 2  # and the bell's and the heart's own
CONNECT_SECONDS = 5.0
# How long one statement may take, a wait for somebody's lock included, before the database counts as unavailable.
STATEMENT_SECONDS = 30.0
LOCK_SECONDS = 10
# A node that is stopped in the middle of a transaction must not keep its locks.
IDLE_SECONDS = 10
# While a lost connection's last transaction is in doubt: how long until the next look.
SETTLE_SECONDS = 0.5

# The connection is gone, or will be: what it was doing may or may not have happened.
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
# A mistake of ours: it must be seen, not tried again.
MISTAKES = (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


class InDoubt(StorageUnavailable):
    """The connection was lost while it was committing."""

    def __init__(self, operation: str, cause: str, token: int) -> None:
        super().__init__(operation, cause)
        self.token = token


class Link:
    """One connection. It holds an advisory lock that nobody else knows of: once that can be taken, the session is over,
    and what it did last is decided."""

    def __init__(self, connection: Connection, token: int) -> None:
        self.connection = connection
        self.token = token


class Pool:
    """So many connections at most, opened when needed; the one that was used last is used next."""

    def __init__(self, open_link: Callable[[], Awaitable[Link]], size: int) -> None:
        self._open = open_link
        self._room = asyncio.Semaphore(size)
        self._idle: list[Link] = []

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Link]:
        async with self._room:
            link = await self._find()
            sound = False
            try:
                yield link
                sound = True
            except (OutliveError, asyncpg.PostgresError) as error:
                sound = not isinstance(error, LOST)
                raise
            finally:
                if sound and not link.connection.is_closed():
                    self._idle.append(link)
                else:
                    link.connection.terminate()

    async def _find(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if not link.connection.is_closed():
                return link
        return await self._open()

    async def close(self) -> None:
        for link in self._idle:
            with contextlib.suppress(Exception):
                await link.connection.close(timeout=2)
        self._idle.clear()


class Database:
    """Made by `open`."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.healthy = True
        self.ahead: float | None = None  # of this machine's monotonic clock the database's is, in seconds
        self.generation = 0  # how often a writing connection was lost: since then a standby may have become the primary
        self._hot = Pool(self._open_link, HOT)
        self._writers = Pool(self._open_link, WRITERS)
        self._readers = Pool(self._open_link, READERS)

    @classmethod
    async def open(cls, dsn: str) -> Database:
        """Connect and bring the schema up to date. Raises SettingsError when that cannot be."""
        await migrate_database(dsn)
        return cls(dsn)

    async def close(self) -> None:
        for pool in (self._hot, self._writers, self._readers):
            await pool.close()

    async def read(self, name: str, work: Work[T]) -> T:
        try:
            async with self._readers.use() as link:
                return await work(link.connection)
        except MISTAKES:
            raise
        except ERRORS as error:
            raise StorageUnavailable(name, describe(error)) from error

    async def write(self, name: str, work: Work[T], *, hot: bool = False) -> T:
        """One statement, and so one transaction. Raises InDoubt when nobody can say whether it was committed."""
        token = None
        try:
            async with (self._hot if hot else self._writers).use() as link:
                token = link.token
                if failpoints.is_set:
                    _reach("before", name)
                result = await work(link.connection)
                if failpoints.is_set:
                    _reach("after", name)
                self.healthy = True
                return result
        except MISTAKES:
            raise
        except LOST as error:
            self._lose()
            if token is None:
                raise StorageUnavailable(name, describe(error)) from error
            raise InDoubt(name, describe(error), token) from error
        except asyncpg.PostgresError as error:
            self.healthy = isinstance(error, asyncpg.TransactionRollbackError)
            raise StorageUnavailable(name, describe(error)) from error

    async def transact(self, name: str, work: Work[T]) -> T:
        """Several statements in one transaction."""

        async def inside(connection: Connection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.write(name, inside)

    async def transact_surely(self, name: str, work: Work[T], find: Work[T | None]) -> T:
        """The same, for what must not be done twice: after a lost line, `find` tells what came of it, if anything."""
        try:
            return await self.transact(name, work)
        except InDoubt as doubt:
            await self.settle(doubt)
            found = await self.insist(name, find)
            if found is None:
                raise
            return found

    async def settle(self, doubt: InDoubt) -> None:
        """Wait until the lost connection is over, and so its last transaction decided."""
        while True:
            try:
                async with self._writers.use() as link:
                    await link.connection.execute(_END_SESSION, doubt.token)
                    await link.connection.execute("SELECT pg_advisory_lock($1)", doubt.token)
                    await link.connection.execute("SELECT pg_advisory_unlock($1)", doubt.token)
                    return
            except ERRORS:
                await asyncio.sleep(SETTLE_SECONDS)

    async def insist(self, name: str, work: Work[T]) -> T:
        """Ask, however long it takes: the answer must be known."""
        while True:
            try:
                return await self.write(name, work)
            except StorageUnavailable:
                await asyncio.sleep(SETTLE_SECONDS)

    async def probe(self) -> bool:
        """Whether the database can be written; asks it only when it last could not."""
        if not self.healthy:
            with contextlib.suppress(StorageUnavailable):
                await self.write("probe", lambda connection: connection.execute("SELECT pg_current_xact_id()"))
        return self.healthy

    async def find_risks(self) -> list[Risk]:
        """How what is committed may be lost all the same."""
        return await self.read("look", find_risks)

    async def read_clock(self) -> None:
        with contextlib.suppress(StorageUnavailable):
            await self.read("clock", self._read_clock)

    async def _read_clock(self, connection: Connection) -> None:
        asked = time.monotonic()
        self.ahead = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8") - asked

    def _lose(self) -> None:
        self.healthy = False
        self.generation += 1

    async def _open_link(self) -> Link:
        connection = await connect(self.dsn)
        token = secrets.randbits(62)
        try:
            await connection.execute("SELECT pg_advisory_lock($1)", token)
            await self._read_clock(connection)
        except BaseException:
            connection.terminate()
            raise
        return Link(connection, token)


def _reach(when: str, name: str) -> None:
    """Every commit is an armed point, by itself and by what it commits: `before-commit`, `before-commit-of-close`."""
    failpoints.hit(f"{when}-commit")
    failpoints.hit(f"{when}-commit-of-{name.replace(' ', '-')}")


async def connect_once(dsn: str) -> Connection:
    """A first connection. Raises SettingsError when there is none to be had."""
    try:
        return await connect(dsn, patient=True)
    except (*ERRORS, ValueError) as error:
        raise SettingsError(f"The database cannot be reached: {describe(error)}.") from error


async def migrate_database(dsn: str) -> tuple[int, int]:
    """Bring the schema up to date; its version before and after. Raises SettingsError when that cannot be."""
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


# The session that holds this lock, if it still lives on the server's side.
_END_SESSION = """
SELECT pg_terminate_backend(pid) FROM pg_locks
 WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = $1
"""


async def connect(dsn: str, settings: dict[str, str] | None = None, *, patient: bool = False) -> Connection:
    """A connection to the primary: of several hosts in the DSN, the one that can be written.

    `patient`: its statements may take as long as they like.
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
            # Our statements are few and simple: planning each anew would cost more than any plan could save.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            # Every read of ours has its index, and must not miss it while statistics are young.
            "enable_seqscan": "off",
            "lock_timeout": f"{LOCK_SECONDS}s",
            "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
            "client_min_messages": "error",
            **(settings or {}),
        },
    )


def describe(error: BaseException) -> str:
    """What went wrong, in one line and without what somebody's content may be in (an error's detail)."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "message", None) or str(error)
    return f"{type(error).__name__}: {text}".splitlines()[0].rstrip(".") if text else type(error).__name__


def as_text(value: Any) -> str:
    """Postgres text holds every character but one, which no id of ours has."""
    text = str(value)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
