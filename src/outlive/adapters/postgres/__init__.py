"""The ports on a Postgres database that any number of nodes share."""

from outlive.adapters.postgres.bell import PostgresBell
from outlive.adapters.postgres.catalog import PostgresCatalog
from outlive.adapters.postgres.connection import Database
from outlive.adapters.postgres.conversations import PostgresConversations
from outlive.adapters.postgres.heart import PostgresHeart
from outlive.adapters.postgres.history import PostgresHistory
from outlive.adapters.postgres.journal import PostgresJournal
from outlive.adapters.postgres.keeper import PostgresKeeper
from outlive.adapters.postgres.ledger import PostgresLedger
from outlive.adapters.postgres.secrets import find_secret

__all__ = [
    "Database",
    "PostgresBell",
    "PostgresCatalog",
    "PostgresConversations",
    "PostgresHeart",
    "PostgresHistory",
    "PostgresJournal",
    "PostgresKeeper",
    "PostgresLedger",
    "find_secret",
]
