"""The storage: the adapters of one database, chosen by its URL."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from outlive.config.database_url import is_shared, path_of
from outlive.core.errors import SettingsError
from outlive.ports.bell import NoBell
from outlive.ports.ledger import Quota
from outlive.ports.storage import NoHeartbeat, Storage
from outlive.storage.catalog import SqlCatalog
from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.storage.sqlite.conversations import SqliteConversations
from outlive.storage.sqlite.journal import SqliteJournal
from outlive.storage.sqlite.ledger import SqliteLedger
from outlive.storage.sqlite.packing import SqlitePacking
from outlive.storage.sqlite.retention import SqliteRetention
from outlive.storage.sqlite.threads import SqliteHistory
from outlive.storage.tickets import SqlTickets

log = logging.getLogger("outlive")

# The secret that seals what clients keep for the server. It lies in the database, and moves with it.
SECRET = "seal"  # noqa: S105 - its name


@contextlib.asynccontextmanager
async def open_storage(url: str, node: str, lease_seconds: float, quota: Quota) -> AsyncIterator[Storage]:
    """Open a database for the node of this name. Raises SettingsError."""
    async with contextlib.AsyncExitStack() as stack:
        if is_shared(url):
            yield await _open_postgres(url, node, lease_seconds, quota, stack)
        else:
            yield await _open_sqlite(url, stack)


async def _open_sqlite(url: str, stack: contextlib.AsyncExitStack) -> Storage:
    database = SqliteDatabase(str(path_of(url)))
    stack.push_async_callback(database.close)
    return Storage(
        ledger=SqliteLedger(database),
        journal=SqliteJournal(database),
        history=SqliteHistory(database),
        catalog=SqlCatalog(database),
        conversations=SqliteConversations(database),
        retention=SqliteRetention(database),
        tickets=SqlTickets(database),
        packing=SqlitePacking(database),
        bell=NoBell(),
        heartbeat=NoHeartbeat(),
        probe=database.probe,
        secret=await database.find_secret(SECRET),
        shared=False,
    )


async def _open_postgres(
    url: str, node: str, lease_seconds: float, quota: Quota, stack: contextlib.AsyncExitStack
) -> Storage:
    # Its driver is an extra, which a server on SQLite does not need.
    try:
        from outlive.storage import postgres
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error
    database = await postgres.PostgresDatabase.open(url)
    stack.push_async_callback(database.close)
    for risk in await database.find_risks():
        log.warning("%s", risk.sentence)
    bell = postgres.PostgresBell(url)
    stack.push_async_callback(bell.close)
    await bell.start()
    ledger = postgres.PostgresLedger(database, node, quota)
    stack.push_async_callback(ledger.finish)
    return Storage(
        ledger=ledger,
        journal=postgres.PostgresJournal(database),
        history=postgres.PostgresHistory(database),
        catalog=SqlCatalog(database),
        conversations=postgres.PostgresConversations(database),
        retention=postgres.PostgresRetention(database),
        tickets=SqlTickets(database),
        packing=postgres.PostgresPacking(database),
        bell=bell,
        heartbeat=postgres.PostgresHeartbeat(url, node, lease_seconds),
        probe=database.probe,
        secret=await database.find_secret(SECRET),
        shared=True,
    )
