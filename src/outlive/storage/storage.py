"""The home of everything that is stored: the adapters of one database, picked by its URL."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from outlive.config.database_url import is_shared
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog
from outlive.ports.conversations import Conversations
from outlive.ports.heartbeat import Heartbeat
from outlive.ports.history import History
from outlive.ports.journal import Journal
from outlive.ports.ledger import Ledger, Quota
from outlive.ports.retention import Retention
from outlive.storage.sqlite.bell import NoBell
from outlive.storage.sqlite.catalog import SqliteCatalog
from outlive.storage.sqlite.connection import Database
from outlive.storage.sqlite.conversations import SqliteConversations
from outlive.storage.sqlite.heartbeat import NoHeartbeat
from outlive.storage.sqlite.history import SqliteHistory
from outlive.storage.sqlite.journal import SqliteJournal
from outlive.storage.sqlite.ledger import SqliteLedger
from outlive.storage.sqlite.retention import SqliteRetention
from outlive.storage.sqlite.secrets import find_secret

log = logging.getLogger("outlive")

# The secret by which the server knows again what it gave out sealed. It lies in the database, and goes where that goes.
SECRET = "seal"  # noqa: S105 - the name it goes by


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One database, through all its ports."""

    ledger: Ledger
    journal: Journal
    history: History
    catalog: Catalog
    conversations: Conversations
    retention: Retention
    bell: Bell
    heartbeat: Heartbeat
    probe: Callable[[], Awaitable[bool]]
    secret: bytes  # the server's own, made once; nodes that share the database share it
    shared: bool  # other nodes may be at work on it


@contextlib.asynccontextmanager
async def open_storage(settings: Settings, node: str) -> AsyncIterator[Storage]:
    """Open the database that the settings name, for the node of this name. Raises SettingsError."""
    opened = _open_postgres(settings, node) if is_shared(settings.database) else _open_sqlite(settings)
    async with opened as home:
        yield home


@contextlib.asynccontextmanager
async def _open_sqlite(settings: Settings) -> AsyncIterator[Storage]:
    database = Database(str(settings.database_path))
    try:
        yield Storage(
            ledger=SqliteLedger(database),
            journal=SqliteJournal(database),
            history=SqliteHistory(database),
            catalog=SqliteCatalog(database),
            conversations=SqliteConversations(database),
            retention=SqliteRetention(database),
            bell=NoBell(),
            heartbeat=NoHeartbeat(),
            probe=database.probe,
            secret=await find_secret(database, SECRET),
            shared=False,
        )
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def _open_postgres(settings: Settings, node: str) -> AsyncIterator[Storage]:
    # Only whoever has a Postgres needs its driver.
    try:
        from outlive.storage import postgres
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error
    url = settings.database
    async with contextlib.AsyncExitStack() as stack:
        database = await postgres.Database.open(url)
        stack.push_async_callback(database.close)
        for risk in await database.find_risks():
            log.warning("%s", risk.sentence)
        bell = postgres.PostgresBell(url)
        stack.push_async_callback(bell.close)
        await bell.start()
        ledger = postgres.PostgresLedger(database, node, _quota(settings))
        stack.push_async_callback(ledger.finish)
        yield Storage(
            ledger=ledger,
            journal=postgres.PostgresJournal(database),
            history=postgres.PostgresHistory(database),
            catalog=postgres.PostgresCatalog(database),
            conversations=postgres.PostgresConversations(database),
            retention=postgres.PostgresRetention(database),
            bell=bell,
            heartbeat=postgres.PostgresHeartbeat(url, node, settings.lease_seconds),
            probe=database.probe,
            secret=await postgres.find_secret(database, SECRET),
            shared=True,
        )


def _quota(settings: Settings) -> Quota:
    return Quota(
        queued=settings.max_waiting,
        running_per_owner=settings.max_running_per_owner,
        queued_per_owner=settings.max_waiting_per_owner,
    )
