"""The storage: the adapters of one database, chosen by its URL."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from outlive.config.database_url import is_shared, path_of
from outlive.core.errors import SettingsError
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.database import Statements
from outlive.ports.ledger import Quota
from outlive.ports.retention import Retention
from outlive.ports.storage import Heartbeat, Storage
from outlive.storage.sqlite.connection import SharedFile, SqliteDatabase
from outlive.storage.sqlite.journal import SqliteHistory, SqliteJournal, SqlitePacking
from outlive.storage.sqlite.ledger import SqliteLedger

if TYPE_CHECKING:
    from outlive.storage.postgres.connection import PostgresDatabase

log = logging.getLogger("outlive")

# The secret that seals what clients keep for the server. It lies in the database, and moves with it.
SECRET = "seal"  # noqa: S105 - its name


@contextlib.asynccontextmanager
async def open_storage(url: str, node: str, lease_seconds: float, quota: Quota) -> AsyncIterator[Storage]:
    """Open a database for the node of this name. Raises SettingsError."""
    async with contextlib.AsyncExitStack() as stack:
        if is_shared(url):
            yield await _open_postgres(url, node, lease_seconds, quota, stack)
            return
        database = SqliteDatabase(str(path_of(url)))
        stack.push_async_callback(database.close)
        yield await _assemble(
            database,
            ledger=SqliteLedger(database),
            journal=SqliteJournal(database),
            history=SqliteHistory(database),
            packing=SqlitePacking(database),
            bell=Bell(),
            heartbeat=Heartbeat(),
            shared=False,
        )


async def _open_postgres(
    url: str, node: str, lease_seconds: float, quota: Quota, stack: contextlib.AsyncExitStack
) -> Storage:
    database: PostgresDatabase = await import_postgres().PostgresDatabase.open(url)
    # Not before: the driver is an extra, which a server on SQLite does not need.
    from outlive.storage.postgres.bell import PostgresBell
    from outlive.storage.postgres.durability import find_risks
    from outlive.storage.postgres.heartbeat import PostgresHeartbeat
    from outlive.storage.postgres.journal import PostgresHistory, PostgresJournal, PostgresPacking
    from outlive.storage.postgres.ledger import PostgresLedger

    stack.push_async_callback(database.close)
    for risk in await database.read("find risks", find_risks):
        log.warning("%s", risk.sentence)
    bell = PostgresBell(url)
    stack.push_async_callback(bell.close)
    await bell.start()
    ledger = PostgresLedger(database, node, quota)
    stack.push_async_callback(ledger.finish)
    return await _assemble(
        database,
        ledger=ledger,
        journal=PostgresJournal(database),
        history=PostgresHistory(database),
        packing=PostgresPacking(database),
        bell=bell,
        heartbeat=PostgresHeartbeat(url, node, lease_seconds),
        shared=True,
    )


async def _assemble(database: "SqliteDatabase | PostgresDatabase", **own: Any) -> Storage:
    """Add the ports that both databases share to those of its own."""
    return Storage(
        catalog=Catalog(database),
        conversations=Conversations(database),
        retention=Retention(database),
        database=database,
        probe=database.probe,
        secret=await database.find_secret(SECRET),
        **own,
    )


def import_postgres() -> Any:
    """Return the module of connections to Postgres. Its driver is an extra, which a server on SQLite does not need."""
    try:
        from outlive.storage.postgres import connection
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error
    return connection


@contextlib.asynccontextmanager
async def open_beside(url: str) -> AsyncIterator[Statements]:
    """Open a database that a server may be using, for single statements. Raises SettingsError."""
    database = await (import_postgres().PostgresDatabase.open(url) if is_shared(url) else SharedFile.open(path_of(url)))
    try:
        yield database
    finally:
        await database.close()
